-- What TAB completes (through the prompt itself: prompt_spec.lua).

local gpu = require "gpulua"
local support = require "spec.support"

describe("completion", function()
  local complete = require "gpulua.complete"
  local kernels <const> = [[
    extern "C" __global__ void scale(int *x) { x[0] *= 2; }
    extern "C" __global__ void score(int *x) { x[0] = 1; }]]

  local function adds(wanted, before)
    local added, list = complete(before, 80)
    assert.equal(wanted, added, before)
    assert.is_nil(list, before)
  end

  --- The names to choose from, in order.
  local function choice(before, columns)
    local added, list = complete(before, columns or 80)
    assert.is_nil(added, before)
    local names = {}
    for name in list:gmatch "%S+" do names[#names + 1] = name end
    table.sort(names)
    return table.concat(names, " "), list
  end

  before_each(function()
    _G.spec_value = { number = 1, name_one = "x", name_two = {}, call = print, ["not a name"] = 1, [1] = { inner = {} },
      text = "abc", deeper = { ["a b"] = { found = 1 } }, self = false }
  end)
  teardown(function()
    _G.spec_value = nil
    support.close_all()
  end)

  it("of globals and words of Lua, wherever a name begins", function()
    for _, front in ipairs { "", "x = ", "print(1, ", "{", "a..", "#", "t[", "::", "return not " } do
      adds("ng", front .. "stri")
      adds("lue", front .. "spec_va")
      adds("etatable(", front .. "rawlen(setm")
      adds("ion", front .. "funct")
    end
    assert.equal("_G _VERSION", choice "x = _")
    assert.equal("else elseif", choice "else")
    adds(nil, "nothing_of_that_name")
    adds(nil, "x = 12")
    adds(nil, "x = 0x")
  end)

  it("of fields: of tables in tables, by name, number and text", function()
    assert.equal("name_one name_two number", choice "print(spec_value.n")
    adds("me_", "x = spec_value.na")
    assert.equal("name_one name_two", choice "spec_value.name_")
    adds("er", "spec_value[1].inn")
    adds("nd", 'spec_value.deeper["a b"].fou')
    adds("ue", "_G._G.spec_val")
    for _, unknown in ipairs { "f(spec_value).", "spec_value()[1].", "spec_value.none.", "none.", "spec_value.call.",
      ")..", "spec_value.number.", "spec_value.self.", "('x').", "spec_value[i].", "1..spec_value.none." } do
      assert.is_nil(complete(unknown .. "f", 80), unknown)
    end
    adds("er", "x..spec_value[1].inn")
  end)

  it("of methods: functions alone behind a colon", function()
    adds("all(", "spec_value:c")
    adds(nil, "spec_value:nam")
    adds("erse(", "spec_value.text:rev")
    adds("vbuf(", "io.stdout:set")
    assert.equal("seek setvbuf", choice "io.stdout:se")
  end)

  it("of what is inherited, and calls nothing for that", function()
    local called = 0
    local function call() called = called + 1 end
    local base = setmetatable({ base_method = print }, { __index = call, __pairs = call, __len = call })
    _G.spec_value = setmetatable({ own = 1 }, { __index = base, __pairs = call, __call = call })
    adds("se_method(", "spec_value:ba")
    adds("wn", "spec_value.o")
    adds(nil, "spec_value.nothing.x")
    _G.spec_value = setmetatable({}, { __metatable = "hidden", __index = call })
    adds(nil, "spec_value.x")
    local ring = {}
    _G.spec_value = setmetatable(ring, { __index = ring })
    adds(nil, "spec_value.x")
    assert.equal(0, called)
  end)

  it("of the methods and fields of each handle, open or closed", function()
    local dev = support.open()
    local buffer <const>, host <const> = dev:upload("i32", { 1 }), dev:host("i32", 1)
    local capture <close> = dev:capture()
    buffer:fill(0)
    local graph <const> = capture:finish()
    local mod <const> = dev:compile(kernels)
    local handles = { dev = dev, buffer = buffer, host = host, mod = mod, kernel = mod.scale, stream = dev:current(),
      op = dev:current():mark(), task = gpu.spawn(print), capture = capture, graph = graph,
      scalar = dev:scalar("i32", 1), pool = dev:pool(), plan = dev:fft { shape = 8 }, memory = dev:current().memory }
    _G.spec_value = handles
    for name, handle in pairs(handles) do
      local metatable = debug.getmetatable(handle)
      local wanted = {}
      for method in pairs(metatable.methods or metatable.__index) do
        wanted[#wanted + 1] = method
        local added, list = complete(("spec_value.%s:%s"):format(name, method), 80)
        assert.truthy(added == "(" or list and list:find(method, 1, true), name .. ":" .. method)
      end
      assert.truthy(#wanted > 1)
      local methods = {}
      for method in choice(("spec_value.%s:"):format(name)):gmatch "%S+" do methods[#methods + 1] = method end
      table.sort(wanted)
      assert.same(wanted, methods)
    end
    adds("e", "spec_value.buffer.typ")
    adds("ority", "spec_value.stream.pri")
    assert.equal("scale score", choice "spec_value.mod.sc")
    adds("", "spec_value.mod.scale")
    adds("nch(", "spec_value.mod.scale:lau")
    adds("sion", "spec_value.dev.driver_ver")
    buffer:close()
    adds("e(", "spec_value.buffer:clos")
  end)

  it("of all fields that handles have", function()
    local pipe <close> = assert(io.popen "cat src/binding/*.c")
    local list = assert(support.read_file "lua/gpulua/complete.lua"):match "local fields <const> = (%b{})"
    local count = 0
    for field in pipe:read "a":gmatch 'strcmp%(field, "([%w_]+)"%)' do
      count = count + 1
      assert.truthy(list:find('"' .. field .. '"', 1, true), field)
    end
    assert.truthy(count > 20, count)
  end)

  it("not in quotes and comments", function()
    for _, quoted in ipairs { "'stri", '"stri', "[[stri", "[==[ ]] stri", "-- stri", "--[[ stri", "x = 'a\\' stri",
      [['a\\\' stri]], [["' stri]], "f('a', \"stri", "--[=[ ]] stri", "x --stri" } do
      adds(nil, quoted)
    end
    for _, open in ipairs { "'' stri", [["'" .. stri]], "[[x]] stri", "--[[x]] stri", "a - stri", "t[stri",
      [['a\\' .. stri]], "[=[ ]] ]=] stri", "x = 1 -- c\nstri", "a[b[stri" } do
      adds("ng", open)
    end
  end)

  it("lists what there is to choose from in columns, and not without end", function()
    _G.spec_value = {}
    for i = 1, 9 do _G.spec_value["key" .. i] = i end
    local _, list = choice("spec_value.key", 20)
    assert.equal("key1  key4  key7\nkey2  key5  key8\nkey3  key6  key9\n", list)
    _, list = choice("spec_value.key", 3)
    assert.equal("key1\nkey2\n", list:sub(1, 10))
    for i = 1, 1000 do _G.spec_value["key" .. i] = i end
    _, list = complete("spec_value.key", 80)
    assert.truthy(list:find "\n%.%.%. and 800 more\n$", list)
  end)
end)
