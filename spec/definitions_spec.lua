-- The definition files (types/library) against the module: everything public is in them, with the fields, options and
-- arguments that it has, and nothing else is.

local definitions = require "tools.definitions"
local gpu = require "gpulua"
local support = require "spec.support"

local has_luv <const> = support.has_luv()
local modules <const> = { ["gpulua.npy"] = true, ["gpulua.wav"] = true, ["gpulua.image"] = true,
  ["gpulua.luv"] = true, ["gpulua.busted"] = true }

-- The classes of handles have the names that gpu.type says; others made by Lua have theirs in __name.
local function kind_of(value)
  local metatable = debug.getmetatable(value)
  return "gpulua." .. (gpu.type(value) or (metatable and metatable.__name or ""):gsub("^gpulua%.", "")):gsub(" ", "_")
end

local model = definitions.read()

describe("the definition files", function()
  it("are well formed, name every error code and use no type that is not there", function()
    assert.equal("", table.concat(model.findings, "\n"))
    assert.equal(33, #model.errors)
    for _, name in ipairs(definitions.files) do
      assert(loadfile(("types/library/%s.lua"):format(name)))
      for line in io.lines(("types/library/%s.lua"):format(name)) do
        assert.truthy(#line <= 120, name .. ": " .. line)
      end
    end
  end)

  it("say what is wrong with them, and where", function()
    local function findings(text)
      local path = os.tmpname()
      local file = assert(io.open(path, "w"))
      assert(file:write("---@meta _\n--[[\n# Chapter\n]]\n\n", text))
      assert(file:close())
      local found = definitions.read_one(path).findings
      os.remove(path)
      return table.concat(found, "\n")
    end
    local class <const> = "---A thing.\n---@class gpulua.thing\n---@field a integer\nlocal thing = {}\n\n"
    local whole <const> = "---Does it.\n---\n---Waits: no.\n---\n---Errors: none.\n"
    assert.equal("", findings(class .. whole .. "---@param a integer\nfunction thing:f(a) end\n"))
    for finding, text in pairs {
      ["what does it do?"] = class .. "---Waits: no.\n---\n---Errors: none.\nfunction thing:f() end\n",
      ["a paragraph 'Waits: no', '... yields ...' or '... blocks ...' expected"] =
        class .. "---Does it.\n---\n---Errors: none.\nfunction thing:f() end\n",
      ["a paragraph 'Errors: ...'"] = class .. "---Does it.\n---\n---Waits: no.\nfunction thing:f() end\n",
      ["thing:f: @param a expected, got nothing"] = class .. whole .. "function thing:f(a) end\n",
      ["thing:f: it has no parameter b"] = class .. whole .. "---@param b integer\nfunction thing:f() end\n",
      ["there is no type gpulua.other"] = class .. whole .. "---@return gpulua.other x\nfunction thing:f() end\n",
      ["thing:f: there is no error code Wrong"] =
        class .. "---Does it.\n---\n---Waits: no.\n---\n---Errors: `Wrong`.\nfunction thing:f() end\n",
      ["the field a is there twice"] = "---@class gpulua.thing\n---@field a integer\n---@field a string\n",
      ["gpulua.thing is there twice"] = class .. "---@class gpulua.thing\n",
      ["'integer|': a type expected"] = "---@class gpulua.thing\n---@field a integer|\n",
      ["@deprecated is not known"] = class .. "---@deprecated\n",
      ["other is no class's variable"] = class .. whole .. "function other:f() end\n",
      ["what is this? 'print()'"] = class .. "print()\n",
    } do
      local found = findings(text)
      assert.truthy(found:find(finding, 1, true), finding .. " expected, got: " .. found)
      assert.truthy(found:find ":%d+: ", found)
    end
  end)
end)

describe("the definitions of", function()
  local dev, checked
  local made = {} -- class -> values of it

  local function add(class, ...)
    made[class] = made[class] or {}
    for _, value in ipairs { ... } do
      table.insert(made[class], value)
    end
    return ...
  end

  local function add_error(f, ...)
    local ok, err = pcall(f, ...)
    assert.is_false(ok)
    return add("gpulua.error", err)
  end

  local source <const> = [[
    extern "C" __global__ void scale(int n, float f, float *x) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) x[i] *= f;
    }]]

  -- Something of every class.
  local function make_all()
    add("gpulua", gpu)
    add("gpulua.control", gpu.graph)
    add("gpulua.trace", require "gpulua.trace")
    for name in pairs(modules) do
      if name ~= "gpulua.luv" or has_luv then
        add(name, (require(name)))
      end
    end
    add("gpulua.injections", require "gpulua.busted".inject)
    dev = add("gpulua.device", support.open { trace = true, label = "all", restarts = 0 })
    local infos = {}
    dev:hooks { before_enqueue = function(info) infos[#infos + 1] = info end }
    local x = add("gpulua.buffer", dev:buffer("f32", { 2, 4 }, { label = "x" }):fill(1))
    local z = add("gpulua.buffer", dev:buffer("c64", 3))
    add("gpulua.host_buffer", dev:host("f32", 4))
    add("gpulua.scalar", dev:scalar("f64", 1.5, { label = "s" }), dev:scalar("i32", 1))
    local mod = add("gpulua.module", dev:compile(source))
    local kernel = add("gpulua.kernel", mod.scale)
    add("gpulua.attributes", kernel:attributes())
    add("gpulua.occupancy", select(2, kernel:occupancy()))
    local stream = add("gpulua.stream", dev:current(), dev:stream { label = "own", priority = -1 })
    local first = add("gpulua.op", kernel:launch(8, 8, 2.0, x))
    local second = add("gpulua.op", dev:stream { label = "other" }:use(kernel.launch, kernel, 8, 8, 2.0, x))
    local why = add("gpulua.why", (assert(gpu.why(second, first))))
    add("gpulua.hazard", table.unpack(why))
    second:await()
    add("gpulua.task", gpu.spawn(function() gpu.sleep(0.01) end))
    add("gpulua.recorder", dev:recorder { stream = stream })
    local pool = add("gpulua.pool", dev:pool())
    local capture = add("gpulua.capture", dev:capture { label = "captured", pool = pool })
    kernel:launch(8, 8, 1.0, x)
    add("gpulua.graph", capture:finish())
    made["gpulua.capture"] = { dev:capture {} }
    made["gpulua.capture"][1]:close()
    add("gpulua.graphed", dev:graphed(function() end))
    local memory = add("gpulua.memory", dev:memory { statistics = true, log = true, guard = { canary = 16 } })
    add("gpulua.memory_stats", memory:stats())
    add("gpulua.blas", dev:blas())
    add("gpulua.fft", dev:fft { shape = 8 })
    local rng = add("gpulua.rng", dev:rng { seed = 1 })
    rng:uniform(x)
    add("gpulua.rng_state", rng:state())
    local has_curand, xorwow = pcall(dev.rng, dev, { generator = "xorwow" })
    if has_curand then
      add("gpulua.rng_state", xorwow:state())
    else
      support.is_error(xorwow, "LibraryUnavailable")
    end
    add("gpulua.progress", gpu.progress {})
    add("gpulua.range", gpu.range("range", 7))
    add("gpulua.stats", dev:stats())
    local map = add("gpulua.memory_map", dev:memory_map())
    add("gpulua.memory_entry", table.unpack(map))
    z:fill { 1, 2 }
    gpu.all(first, z)
    dev:capture(function() z:fill { 1, 2 } end):launch()
    dev:synchronize()
    dev:hooks(nil)
    add("gpulua.hook_info", table.unpack(infos))
    local range <close> = gpu.range "short"
    range:close()
    local trace = require "gpulua.trace"
    add("gpulua.trace_info", (trace.info()))
    add("gpulua.trace_log", table.unpack(trace.info()))
    for event in trace.events() do
      add("gpulua.event", event)
      add("gpulua.traced_argument", table.unpack(event.arguments or {}))
      if event.nodes and #event.nodes > 0 then
        add("gpulua.traced_node", table.unpack(event.nodes))
      end
    end
    local report = add("gpulua.report", gpu.report())
    add("gpulua.device_report", table.unpack(report.devices))
    add("gpulua.kernel_report", table.unpack(report.devices[1].kernels))
    add("gpulua.copy_report", table.unpack(report.devices[1].copies))
    add("gpulua.wait_report", table.unpack(report.waits))
    local path = os.tmpname()
    require "gpulua.wav".save(dev:upload("f32", { 4, 1 }, { 0, 0.5, 0, -0.5 }), path, { rate = 8000 })
    add("gpulua.wav_info", select(2, require "gpulua.wav".load(dev, path)))
    os.remove(path)
    -- A device in check mode, and errors with all that they may have.
    checked = gpu.device("cpu", { check = true, isolate = "none", budget = 1 << 20 })
    checked:buffer("f32", 4, { label = "y" }):fill(1):read()
    add("gpulua.ordered", table.unpack(checked:order()))
    add_error(dev.buffer, dev, "f33", 4)
    add_error(x.read, x, 1, 99)
    add_error(checked.buffer, checked, "f32", 1 << 20)
    add_error(dev.compile, dev, 'extern "C" __global__ void bad(float *x) { x[0] = oops; }')
    add_error(gpu.timeout, 0.001, gpu.sleep, 10)
    local past = checked:compile([[
      __device__ __noinline__ void put(int *x, int i) { x[i] = 1; }
      extern "C" __global__ void past(int *x) { put(x, 4); }]]).past
    local found = add_error(function() past:launch({ grid = 1, block = 1 }, checked:buffer("i32", 4)):await() end)
    add("gpulua.place", table.unpack(found.places))
    add("gpulua.place_caller", found.places[1].caller or { source = "", line = 1 }) -- without libdw
    local lost = gpu.device("cpu", { isolate = "none", restarts = 0 })
    local lost_x = lost:buffer("f32", 4, { label = "lost" })
    lost:inject { fault = 1 }
    local err = add_error(function() lost_x:fill(1):read() end)
    add("gpulua.op_info", err.op or err.suspects[1])
    lost:close()
  end

  setup(make_all)
  teardown(function()
    if checked then checked:close() end
    support.close_all()
  end)

  -- Every call that takes a table of options, with a function that is given the table.
  local function option_calls()
    local calls = {}
    local function call(class, f)
      calls[#calls + 1] = { "gpulua." .. class, f }
    end
    local x, kernel, graph = made["gpulua.buffer"][1], made["gpulua.kernel"][1], made["gpulua.graph"][1]
    local memory, blas = made["gpulua.memory"][1], made["gpulua.blas"][1]
    local plan, rng = made["gpulua.fft"][1], made["gpulua.rng"][1]
    call("device_options", function(o) gpu.device("cpu", o) end)
    call("device_options", function(o) gpu.device(o) end)
    call("buffer_options", function(o) dev:buffer("f32", 4, o) end)
    call("buffer_options", function(o) dev:upload("f32", { 1 }, o) end)
    call("buffer_options", function(o) memory:buffer("f32", 4, o) end)
    call("buffer_options", function(o) memory:buffers { "f32", 4, o } end)
    call("host_options", function(o) dev:host("f32", 4, o) end)
    call("scalar_options", function(o) dev:scalar("f32", 4, o) end)
    call("compile_options", function(o) dev:compile(source, o) end)
    call("load_options", function(o) dev:load(".version 8.0", o) end)
    call("stream_options", function(o) dev:stream(o) end)
    call("capture_options", function(o) dev:capture(o) end)
    call("capture_options", function(o) dev:capture(o, print) end)
    call("graphed_options", function(o) dev:graphed(o, print) end)
    call("recorder_options", function(o) dev:recorder(o) end)
    call("memory_options", function(o) dev:memory(o) end)
    call("guard_options", function(o) dev:memory { guard = o } end)
    call("inject_options", function(o) dev:inject(o) end)
    call("hooks", function(o) dev:hooks(o) end)
    call("launch_options", function(o) kernel:launch(o, 8, 1.0, x) end)
    call("replay_options", function(o) graph:launch(o) end)
    call("update_options", function(o) graph:update(o, print) end)
    call("blas_options", function(o) dev:blas(o) end)
    for _, name in ipairs { "gemm", "gemv", "ger", "geam", "syrk", "trsm", "axpy", "scal", "rot", "dot" } do
      call(name .. "_options", function(o) blas[name](blas, o) end)
    end
    for _, name in ipairs { "copy", "swap" } do
      call("vectors_options", function(o) blas[name](blas, o) end)
    end
    for _, name in ipairs { "nrm2", "asum", "iamax" } do
      call("vector_options", function(o) blas[name](blas, o) end)
    end
    call("fft_options", function(o) dev:fft(o) end)
    call("fft_layout", function(o) dev:fft { shape = 8, input = o } end)
    call("fft_layout", function(o) dev:fft { shape = 8, output = o } end)
    call("transform_options", function(o) plan:forward(made["gpulua.buffer"][2], nil, o) end)
    call("transform_options", function(o) plan:inverse(made["gpulua.buffer"][2], nil, o) end)
    call("rng_options", function(o) dev:rng(o) end)
    for _, name in ipairs { "bits", "uniform", "normal", "log_normal", "poisson" } do
      call("call_options", function(o)
        rng[name](rng, x, table.unpack { name ~= "bits" and name ~= "uniform" and 1 or o,
          name == "poisson" and o or name:find "normal" and 1 or nil, name:find "normal" and o or nil })
      end)
    end
    call("reduce_options", function(o) gpu.reduce("sum", x, o) end)
    call("progress_options", function(o) gpu.progress(o) end)
    call("wav_load_options", function(o) require "gpulua.wav".load(dev, "x", o) end)
    call("wav_save_options", function(o) require "gpulua.wav".save(x, "x", o) end)
    call("save_all_options", function(o) require "gpulua.npy".save_all({}, "x", o) end)
    return calls
  end

  -- ---- values and types ----

  local conforms

  local function is_plain(name, value)
    local kind = type(value)
    if name == "any" then
      return true
    elseif name == "integer" then
      return math.type(value) == "integer"
    elseif name == "true" or name == "false" then
      return tostring(value) == name
    end
    return kind == name
  end

  -- Every field that there has to be, each of its type; of tables without methods also: no other.
  local function fields_conform(value, class, where)
    local fields = definitions.fields_of(model, class)
    for name, field in pairs(fields) do
      local got = value[name]
      if not (got == nil and field.is_optional) then
        local problem = conforms(got, definitions.type_of(field.type), where .. "." .. name)
        if problem then
          return problem
        end
      end
    end
    if type(value) == "table" and #class.functions == 0 then
      for key, got in pairs(value) do
        if not fields[key] then
          local problem = ("%s: the definition has no %s"):format(where, key)
          for _, field in ipairs(class.fields) do
            problem = field.key and is_plain(field.key, key)
              and (conforms(got, definitions.type_of(field.type), where .. "[]") or "") or problem
          end
          if problem ~= "" then
            return problem
          end
        end
      end
    end
  end

  local function alias_conforms(value, alias, where)
    for _, entry in ipairs(alias.entries) do
      local word = entry.value:match '^"(.*)"$'
      if word and value == word or not word and is_plain(entry.value, value) then
        return nil
      end
    end
    if alias.type then
      return conforms(value, definitions.type_of(alias.type), where)
    end
    return ("%s: %s is no %s"):format(where, tostring(value), alias.name)
  end

  -- nil, or what is wrong.
  function conforms(value, type_wanted, where)
    local kind = type_wanted.kind
    local function wrong(wanted)
      return ("%s: %s expected, got %s"):format(where, wanted, tostring(value))
    end
    if kind == "any of" then
      local problem
      for _, choice in ipairs(type_wanted) do
        problem = conforms(value, choice, where)
        if not problem then
          return nil
        end
      end
      return problem
    elseif kind == "optional" then
      return value ~= nil and conforms(value, type_wanted[1], where) or nil
    elseif kind == "literal" then
      return value ~= type_wanted.value and wrong(("%q"):format(type_wanted.value)) or nil
    elseif kind == "function" then
      return type(value) ~= "function" and wrong "a function" or nil
    elseif kind == "list" then
      for i, element in ipairs(type(value) == "table" and value or {}) do
        local problem = conforms(element, type_wanted[1], ("%s[%d]"):format(where, i))
        if problem then
          return problem
        end
      end
      return type(value) ~= "table" and wrong "a list" or nil
    elseif kind == "table" then
      if type(value) ~= "table" then
        return wrong "a table"
      end
      for name, field in pairs(type_wanted.fields) do
        local problem = conforms(value[name], field.type, where .. "." .. name)
        if problem and not (field.is_optional and value[name] == nil) then
          return problem
        end
      end
      for name in pairs(value) do
        if not type_wanted.fields[name] then
          return ("%s: the definition has no %s"):format(where, name)
        end
      end
      return nil
    end
    local name = type_wanted.name
    local class, alias = model.classes[name], model.aliases[name]
    if alias then
      return alias_conforms(value, alias, where)
    elseif not class then
      return not is_plain(name, value) and wrong(name) or nil
    elseif #class.functions > 0 then
      local is_plain_table = modules[name] or value == gpu.graph or value == gpu.trace or name == "gpulua.injections"
      return kind_of(value) ~= name and not is_plain_table and wrong(name) or nil
    end
    return type(value) ~= "table" and wrong(name) or fields_conform(value, class, where)
  end

  it("fields: each value has those of its class, of their types, and tables have no other", function()
    local problems = {}
    for name, values in pairs(made) do
      for _, value in ipairs(values) do
        problems[#problems + 1] = fields_conform(value, assert(model.classes[name], name), name)
      end
    end
    table.sort(problems)
    assert.equal("", table.concat(problems, "\n"))
  end)

  it("fields: those that handles have in C are all there", function()
    local counts = 0
    for path, classes in pairs { ["buffer.c"] = { "buffer", "host_buffer", "scalar" }, ["device.c"] = { "device" },
      ["memory.c"] = { "memory" }, ["op.c"] = { "op" }, ["stream.c"] = { "stream" } } do
      for field in support.read_file("src/binding/" .. path):gmatch 'strcmp%(field, "([%w_]+)"%)' do
        for _, class in ipairs(classes) do
          local is_there = definitions.fields_of(model, model.classes["gpulua." .. class])[field] ~= nil
          assert.equal(class ~= "scalar" or field ~= "shape", is_there, class .. "." .. field)
          counts = counts + 1
        end
      end
    end
    assert.truthy(counts > 30, counts)
  end)

  -- ---- functions ----

  local function functions_of(value)
    local metatable = debug.getmetatable(value)
    local list = value
    if type(value) ~= "table" or metatable and (metatable.__name or ""):find "^gpulua%." then
      list = metatable.methods or metatable.__index or {}
    end
    local found = {}
    for name, f in pairs(list) do
      if type(f) == "function" and type(name) == "string" and not name:find "^__" then
        found[name] = f
      end
    end
    return found
  end

  it("functions: every one of the module and its objects, and no other", function()
    local problems, count = {}, 0
    for name, values in pairs(made) do
      local class, found = model.classes[name], functions_of(values[1])
      for function_name in pairs(found) do
        count = count + 1
        if not class.functions[function_name] then
          problems[#problems + 1] = ("%s.%s has no definition"):format(name, function_name)
        end
      end
      for _, own in ipairs(class.functions) do
        if not found[own.name] then
          problems[#problems + 1] = ("%s.%s is defined, but not there"):format(name, own.name)
        end
      end
    end
    table.sort(problems)
    assert.equal("", table.concat(problems, "\n"))
    assert.truthy(count > 190, count)
  end)

  -- ---- docstrings ----

  -- What docstrings call a value of a class.
  local names_of <const> = { gpulua = { "gpu" }, control = { "gpu.graph", "control" }, trace = { "gpu.trace", "trace" },
    device = { "device", "dev" }, memory = { "memory", "mem" }, fft = { "fft", "plan" }, host_buffer = { "buffer" },
    busted = { "kit" }, injections = { "inject" } }

  -- { "name", ... } of "(name, other[, name = default])"; a table of named arguments is "{}".
  local function arguments_of(text)
    local inner = text:match "^%((.*)%)$" or text
    inner = inner:gsub("%b{}", "{}"):gsub("[%[%]%s]", "")
    local list = {}
    for argument in inner:gmatch "[^,]+" do
      list[#list + 1] = argument:match "^[^=]+"
    end
    return list
  end

  -- Every comment of the sources, a text each, without what marks it as one.
  local function comments_of(path)
    local text, list, block = support.read_file(path), {}, {}
    if path:find "%.c$" then
      for comment in text:gmatch "/%*(.-)%*/" do
        list[#list + 1] = ("\n" .. comment):gsub("\n[ *]*", "\n")
      end
      return list
    end
    for line in (text .. "\n"):gmatch "([^\n]*)\n" do
      local comment = line:match "^%s*%-%-%-?%s?(.*)$"
      block[#block + 1] = comment
      if not comment and #block > 0 then
        list[#list + 1], block = "\n" .. table.concat(block, "\n"), {}
      end
    end
    return list
  end

  -- "class:name" -> { { arguments =, codes = }, ... }, of each call that begins a line of a comment.
  local function docstrings()
    local found, classes = {}, {}
    for name in pairs(model.classes) do
      local short = name:gsub("^gpulua%.", "")
      for _, variable in ipairs(names_of[short] or { short }) do
        classes[variable] = classes[variable] or {}
        table.insert(classes[variable], name)
      end
    end
    local function note(text, codes)
      local variable, name, rest = text:match "^([%a_][%w_.]*)[:.]([%a_][%w_]*)%s?([({].*)$"
      local list = rest and (rest:match "^%b()" or rest:match "^%b{}")
      for _, class in ipairs(list and classes[variable] or {}) do
        local key = class .. ":" .. name
        found[key] = found[key] or {}
        table.insert(found[key], { arguments = arguments_of(list), codes = codes })
      end
    end
    for path in io.popen "ls lua/gpulua/*.lua src/binding/*.c":lines() do
      for _, comment in ipairs(comments_of(path)) do
        local codes = {}
        for word in comment:gmatch "%u%a+" do
          codes[#codes + 1] = model.errors[word] and word
        end
        for at in comment:gmatch "\n()" do
          note(comment:sub(at):gsub("\n", " "), codes)
        end
      end
    end
    return found
  end

  it("errors: a definition has the codes that the docstrings in the sources name", function()
    local found, problems = docstrings(), {}
    local of_groups, count = definitions.codes_of_groups(model), 0
    for name in pairs(made) do
      for _, own in ipairs(model.classes[name].functions) do
        local known = {}
        for _, code in ipairs(own.codes) do
          known[code] = true
        end
        for _, group in ipairs(own.groups) do
          for _, code in ipairs(of_groups[group]) do
            known[code] = true
          end
        end
        for _, paragraph in ipairs(own.text) do -- those that others raise
          for _, code in ipairs((definitions.codes_of(paragraph.text or ""))) do
            known[code] = true
          end
        end
        for _, docstring in ipairs(found[name .. ":" .. own.name] or {}) do
          for _, code in ipairs(docstring.codes) do
            count = count + 1
            if not known[code] then
              problems[#problems + 1] = ("%s: %s"):format(own.call, code)
            end
          end
        end
      end
    end
    table.sort(problems)
    assert.equal("", table.concat(problems, "\n"))
    assert.truthy(count > 80, count)
  end)

  it("arguments: the docstrings in the sources have the same ones, in their order", function()
    local found, problems = docstrings(), {}
    local function is_same(own, list, params)
      local same = #list == #params
      for i, param in ipairs(params) do
        same = same and (list[i] == param or list[i] == "{}" and (own.params[i] or {}).type:find "gpulua%.[%w_]+")
      end
      return same
    end
    for name, values in pairs(made) do
      for _, own in ipairs(model.classes[name].functions) do
        local signatures = { {} }
        for i, param in ipairs(own.params) do
          signatures[1][i] = param.name
        end
        for i, overload in ipairs(own.overloads) do
          signatures[i + 1] = {}
          for param in overload:match "^fun(%b())":gmatch "[(,]%s*([%w_.]+)%??%f[:,)?]" do
            if param ~= "self" then
              table.insert(signatures[i + 1], param)
            end
          end
        end
        local is_found = false
        for _, list in ipairs(found[name .. ":" .. own.name] or {}) do
          for _, params in ipairs(signatures) do
            is_found = is_found or is_same(own, list.arguments, params)
          end
        end
        if not is_found then
          local had = {}
          for i, list in ipairs(found[name .. ":" .. own.name] or {}) do
            had[i] = "(" .. table.concat(list.arguments, ", ") .. ")"
          end
          problems[#problems + 1] = ("%s(%s): the sources have %s"):format(own.call, table.concat(signatures[1], ", "),
            #had > 0 and table.concat(had, " ") or "nothing")
        end
      end
      assert.truthy(values)
    end
    table.sort(problems)
    assert.equal("", table.concat(problems, "\n"))
  end)

  it("classes: there is a value or a call of each", function()
    local has_call, left = { ["gpulua.map_arguments"] = true }, {} -- whose other fields are names of the script's
    has_call["gpulua.traced_node"] = dev.kind == "cuda" -- where CUPTI may not be
    has_call["gpulua.other_report"] = true -- of devices that a host shares: spec/host/shared_trace_test.c
    has_call["gpulua.luv_attached"] = true -- which there is outside of tasks alone: spec/luv_spec.lua
    has_call["gpulua.luv"] = not has_luv
    for _, call in ipairs(option_calls()) do
      has_call[call[1]] = true
    end
    for name, class in pairs(model.classes) do
      if not made[name] and not has_call[name] then
        left[#left + 1] = name
      end
      assert.truthy(#class.text > 0 or modules[name] or name == "gpulua", name .. ": what is it?")
    end
    table.sort(left)
    assert.equal("", table.concat(left, " "))
  end)

  -- ---- options ----

  it("options: each table has those that its call takes, and no other", function()
    local problems = {}
    for _, call in ipairs(option_calls()) do
      local name, defined, known = call[1], {}, {}
      for field in pairs(definitions.fields_of(model, assert(model.classes[name], name))) do
        defined[#defined + 1] = field
      end
      local ok, err = pcall(call[2], { ["no such"] = 1 })
      assert.is_false(ok, name)
      local listed = type(err) == "table" and (err.message:match "'no such'; there are: (.*)$"
        or err.message:match "no such hook: no such %((.*)%)$")
      if not listed then
        problems[#problems + 1] = ("%s: %s"):format(name, tostring(err))
      end
      for option in (listed or ""):gmatch "[%w_]+" do
        known[#known + 1] = option
      end
      table.sort(defined)
      table.sort(known)
      if table.concat(defined, " ") ~= table.concat(known, " ") then
        problems[#problems + 1] = ("%s: the definition has: %s; the call takes: %s"):format(name,
          table.concat(defined, " "), table.concat(known, " "))
      end
    end
    table.sort(problems)
    assert.equal("", table.concat(problems, "\n"))
  end)
end)

describe("the manual's examples", function()
  -- A script of these: { code, where }. Each print says in which example and line it is.
  local function script_of(examples)
    local parts = { "local gpu = require 'gpulua'" }
    for i, example in ipairs(examples) do
      parts[#parts + 1] = ([[
        do
          local dev <close> = gpu.device(os.getenv "GPULUA_DEVICE", {})
          local function print(...)
            local shown = table.pack(...)
            for k = 1, shown.n do shown[k] = tostring(shown[k]) end
            local line = debug.getinfo(2, "l").currentline
            io.write("\1", %d, ":", line, "\2", table.concat(shown, "\t"), "\3")
          end
          local globals = setmetatable({ gpu = gpu, dev = dev, print = print }, { __index = _G })
          local f = assert(load(%q, "=%s", "t", globals))
          local ok, err = pcall(gpu.run, f)
          if not ok then
            io.write("\1", %d, ":0\2", tostring(err), "\3")
          end
        end]]):format(i, example.code, example.where, i)
    end
    return table.concat(parts, "\n")
  end

  local function problems_of(examples)
    local probe <close> = support.open() -- examples that show the device's name show that of the CPU device
    local name = probe.name
    local output, code = support.script(script_of(examples))
    local wanted, problems = {}, {}
    for i, example in ipairs(examples) do
      local number = 0
      for line in (example.code .. "\n"):gmatch "([^\n]*)\n" do
        number = number + 1
        local text = line:match "%-%->%s(.*)$"
        wanted[("%d:%d"):format(i, number)] = text and text:gsub(" on cpu$", " on " .. name)
      end
    end
    if code ~= 0 then
      problems[1] = output
    end
    local seen = {}
    for at, text in output:gmatch "\1(%d+:%d+)\2([^\3]*)\3" do
      seen[at] = true
      if wanted[at] ~= text then
        problems[#problems + 1] = ("%s: line %s: %q expected, got %q"):format(examples[tonumber(at:match "^%d+")].where,
          at:match "%d+$", wanted[at] or "", text)
      end
    end
    for at, text in pairs(wanted) do
      if not seen[at] then
        problems[#problems + 1] = ("%s: %q was not printed"):format(examples[tonumber(at:match "^%d+")].where, text)
      end
    end
    return problems
  end

  it("print what stands behind them", function()
    local together, problems, count = {}, {}, 0
    local function add(examples)
      for _, problem in ipairs(problems_of(examples)) do
        problems[#problems + 1] = problem
      end
    end
    definitions.each_example(model, function(code, where)
      count = count + 1
      if code:find "trace" then
        add { { code = code, where = where } } -- what is traced is of the whole program
      else
        together[#together + 1] = { code = code, where = where }
      end
    end)
    add(together)
    assert.equal("", table.concat(problems, "\n"))
    assert.truthy(count > 50, count)
  end)

  it("twin: an example that prints something else is found, and one that prints nothing", function()
    assert.equal('f: line 1: "2" expected, got "1"', problems_of { { code = "print(1) --> 2", where = "f" } }[1])
    assert.equal('f: "2" was not printed', problems_of { { code = "local x = 1\n--> 2", where = "f" } }[1])
  end)
end)

describe("what is made of the definition files", function()
  it("is what make docs makes", function()
    local pipe = assert(io.popen "${GPULUA_LUA:-lua5.4} tools/reference.lua --check 2>&1")
    assert.equal("", pipe:read "a")
    assert.is_true(pipe:close())
  end)

  it("twin: a page that was changed by hand is found", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir %s && cp -r docs types tools src %s && echo >> %s/docs/errors.md"):format(folder, folder,
      folder)))
    local pipe = assert(io.popen(("cd %s && ${GPULUA_LUA:-lua5.4} tools/reference.lua --check 2>&1"):format(folder)))
    local output = pipe:read "a"
    assert.is_nil((pipe:close()))
    os.execute("rm -r " .. folder)
    assert.equal("docs/errors.md is not what types/library says: make docs\n", output)
  end)

  it("tells luacheck every function and field of the module, and no other", function()
    local module = dofile "types/luacheck.lua".read_globals.gpu
    local function compare(fields, value, where)
      for name in pairs(fields) do
        assert.truthy(value[name] ~= nil, where .. name)
      end
      for name in pairs(value) do
        assert.truthy(fields[name], where .. name)
      end
    end
    compare(module.fields, gpu, "gpu.")
    compare(module.fields.graph.fields, gpu.graph, "gpu.graph.")
    assert.equal(module, dofile "types/luacheck.lua".read_globals.gpulua and module)
  end)

  it("lets luacheck find a misspelt name", function()
    local has = io.popen "command -v luacheck"
    local path = has:read "l"
    has:close()
    if not path then
      return pending "luacheck is not installed"
    end
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
    local function write(name, text)
      local file <close> = assert(io.open(folder .. "/" .. name, "w"))
      assert(file:write(text))
    end
    local here = assert(io.popen "pwd"):read "l"
    write(".luacheckrc", ('stds.gpulua = dofile "%s/types/luacheck.lua"\nstd = "lua54+gpulua"\n'):format(here))
    write("good.lua", 'local dev = gpu.device("cpu")\nprint(dev, gpulua.graph.if_, gpu.version:upper())\n')
    write("bad.lua", 'print(gpu.devcie(), gpu.trace.evnts, oops)\n')
    local command = "cd %s && env -u LUA_PATH -u LUA_CPATH luacheck --no-color good.lua bad.lua 2>&1"
    local pipe = assert(io.popen(command:format(folder)))
    local output = pipe:read "a"
    pipe:close()
    os.execute("rm -r " .. folder)
    assert.truthy(output:find("undefined field 'devcie' of global 'gpu'", 1, true), output)
    assert.truthy(output:find("undefined field 'trace.evnts' of global 'gpu'", 1, true), output)
    assert.truthy(output:find("undefined variable 'oops'", 1, true), output)
    assert.truthy(output:find "good.lua%s+OK", output)
  end)
end)
