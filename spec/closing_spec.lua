-- What closes a buffer, its memory or its device in the middle of a call on it: that call raises what the next would.

local support = require "spec.support"

describe("closed in the middle of a call", function()
  teardown(support.close_all)

  -- ---- by a metamethod or a function ----

  --- A pair of numbers, or a table of two, which calls f when it is looked at.
  local function pair(f)
    return setmetatable({ 1, 2 }, { __len = function() f() return 2 end })
  end
  --- The shape {1, 2}, which calls f when it is looked at.
  local function shape(f)
    return setmetatable({ nil, 2 }, { __index = function() f() return 1 end })
  end

  local calls = { -- buffers of two c64
    ["write of a table"] = function(b, f) b:write(pair(f)) end,
    ["write of a table from an element on"] = function(b, f) b:write(pair(f), 1) end,
    ["write of elements"] = function(b, f) b:write { 1, pair(f) } end,
    ["write of a function"] = function(b, f) b:write(function(i) f() return i end) end,
    ["fill"] = function(b, f) b:fill(pair(f)) end,
  }
  local ways = {
    { "by close", "Closed", function(b) b:close() end },
    { "by free", "UseAfterFree", function(b) if pcall(b.bytes, b) then b:free() end end },
    { "with its device", "Closed", function(_, dev) dev:close() end },
  }
  local makes = {
    buffer = function(dev) return dev:buffer("c64", 2):fill(0) end,
    ["host buffer"] = function(dev) return dev:host("c64", 2) end,
  }

  local function check(make, call, way)
    local dev = support.open { label = "closing" }
    local b = make(dev)
    local function f()
      way[3](b, dev)
    end
    support.raises(way[2], {}, call, b, f)
    if way[1] ~= "with its device" then
      support.works(dev)
    end
    b:close()
    dev:close()
  end

  for _, way in ipairs(ways) do
    for kind, make in pairs(makes) do
      for name, call in pairs(calls) do
        it(("%s: %s of a %s"):format(way[1], name, kind), function() check(make, call, way) end)
      end
    end
    it(way[1] .. ": view of a buffer", function()
      check(makes.buffer, function(b, f) b:view("c64", shape(f)) end, way)
    end)
    it(way[1] .. ": an element of a host buffer that is set", function()
      check(makes["host buffer"], function(h, f) h[1] = pair(f) end, way)
    end)
  end

  it("by close: set of a scalar", function()
    local dev = support.open()
    local s = dev:scalar("c64", 1)
    support.raises("Closed", {}, s.set, s, pair(function() s:close() end))
    support.works(dev)
    dev:close()
  end)

  it("a label that a metamethod gives stays until the buffer is made", function()
    local dev = support.open()
    for _, make in pairs(makes) do
      make(dev):close() -- there is one to use again
    end
    local junk = {}
    for i = 1, 20 do
      local wanted = ("y"):rep(27 + i) -- of at most 47
      local other = setmetatable({}, { __index = function(_, key) return key == "label" and "other" or nil end })
      local b <close> = dev:buffer("f32", 4, setmetatable({}, {
        __index = function(_, key)
          if key == "label" then
            return ("y"):rep(27 + i)
          elseif key == "memory" then
            dev:buffer("f32", 4, other):close()
            collectgarbage()
            collectgarbage()
            for c = 97, 120 do
              junk[c] = string.char(c):rep(27 + i) -- has its place, if it is gone
            end
          end
        end,
      }))
      assert.equal(wanted, b.label)
      assert.equal("x", junk[120]:sub(1, 1))
    end
    dev:close()
  end)

  it("a hook calls no method of a buffer that it has kept", function()
    local dev = support.open()
    local b = dev:buffer("f32", 4)
    local errs = {}
    for name, arguments in pairs { write = { { 1, 2, 3, 4 } }, fill = { 1 }, copy = { b }, read = {}, bytes = {} } do
      local method = b[name]
      dev:hooks { after_enqueue = function() errs[name] = table.pack(pcall(method, b, table.unpack(arguments)))[2] end }
      b:fill(2)
      dev:synchronize()
      dev:hooks(nil)
      support.is_error(errs[name], "StreamMisuse", "a hook cannot call gpulua")
    end
    assert.are.same({ 2, 2, 2, 2 }, b:read())
    dev:close()
  end)

  -- ---- by a finaliser ----

  -- The n-th collection inside the call finds the garbage that closes: for each n until the call is over before. In
  -- programs of their own, where a collection is short.
  local by_finaliser = [==[
    local gpu = require "gpulua"
    local name, way = os.getenv "CASE", os.getenv "WAY"
    local dev = gpu.device()
    local function buffer() return dev:upload("f32", { 1, 2, 3, 4 }, { label = "victim" }) end
    local function complex() return dev:upload("c64", { 1, { 2, 3 }, 3, 4 }) end
    local function host() return dev:host("f32", 4):fill(1) end
    local function complex_host() return dev:host("c64", 600):fill { 1, 2 } end
    local function read(b) return b:read() end
    local function bytes(b) return b:bytes() end
    local data = ("x"):rep(16)
    local cases = {
      read = { buffer, read },
      ["read of pairs"] = { complex, read },
      bytes = { buffer, bytes },
      ["get of a scalar"] = { function() return dev:scalar("f32", 2) end, function(s) return s:get() end },
      ["write of a table"] = { buffer, function(b) return b:write { 1, 2, 3, 4 } end },
      ["write of a string"] = { buffer, function(b) return b:write(data) end },
      ["write of a function"] = { buffer, function(b) return b:write(function(i) return #{ i } end) end },
      fill = { buffer, function(b) return b:fill(2) end },
      tostring = { buffer, function(b)
        local text = tostring(b)
        local whole = "gpulua.buffer f32[4]"
        assert(text:sub(1, #whole) == whole and text:find("victim", 1, true) or text == "gpulua.buffer (closed)", text)
      end },
      slice = { buffer, function(b) return b:slice(1, 2) end },
      view = { buffer, function(b) return b:view("f32", { 2, 2 }) end },
      ["read of a host buffer"] = { host, read },
      ["read of pairs of a host buffer"] = { complex_host, function(h)
        for i, value in ipairs(h:read()) do
          assert(value[1] == 1 and value[2] == 2, i)
        end
      end },
      ["bytes of a host buffer"] = { host, bytes },
      ["an element of a host buffer"] = { complex_host, function(h) return h[1][2] end },
      ["write to a host buffer"] = { host, function(h) return h:write { 1, 2, 3, 4 } end },
    }
    local make, call = table.unpack(cases[name])
    local target, is_over
    local function arm(n)
      coroutine.wrap(function() -- of whose stack nothing is left where a collection would find it
        setmetatable({}, { __gc = function()
          if not target then
            return
          elseif n > 0 then
            arm(n - 1)
          else
            target[way](target)
            target, is_over = nil, true
          end
        end })
      end)()
    end
    local count = 0
    for try = -2, 40 do -- the first collection may come before the call, the first times
      local n = math.max(try, 0)
      is_over = false
      local victim = make()
      dev:synchronize()
      collectgarbage()
      collectgarbage "stop"
      target = victim
      arm(n)
      collectgarbage "restart"
      collectgarbage("incremental", 1, 1000, 24) -- a cycle with each allocation
      local ok, result = pcall(call, victim)
      target = nil
      collectgarbage("incremental", 200, 100, 13)
      if ok and is_over and gpu.type(result) == "buffer" and result ~= victim and way == "close" then
        local other = dev:upload("f32", { 7, 7, 7, 7 })
        assert(result:read()[1] == 1, "the memory of the result was freed")
        other:close()
      elseif not ok then
        assert(type(result) ~= "string", result)
        assert(result.code == "Closed" or result.code == "UseAfterFree", tostring(result))
      end
      victim:close()
      count = count + (is_over and 1 or 0)
      if n > 0 and not is_over then
        break
      end
    end
    assert(count > 0, "no finaliser ran inside the call")
    assert(dev:upload("f32", { 5 }):read()[1] == 5)
    dev:close()
    print "survived"
  ]==]
  for _, name in ipairs { "read", "read of pairs", "bytes", "get of a scalar", "write of a table", "write of a string",
    "write of a function", "fill", "tostring", "slice", "view", "read of a host buffer",
    "read of pairs of a host buffer", "bytes of a host buffer", "an element of a host buffer",
    "write to a host buffer" } do
    it("by a finaliser: " .. name, function()
      for _, way in ipairs { "close", "free" } do
        if way == "close" or name ~= "get of a scalar" then -- which has no free
          local output, code = support.script(by_finaliser, ("CASE='%s' WAY=%s"):format(name, way))
          assert.equal("survived\n", output)
          assert.equal(0, code)
        end
      end
    end)
  end
end)
