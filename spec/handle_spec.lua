-- What all handles have in common: close, <close>, __gc, __tostring, __name, and what they say when they are closed.

local gpu = require "gpulua"
local support = require "spec.support"

describe("every handle:", function()
  local dev, mod

  setup(function()
    dev = support.open()
    mod = dev:compile(support.spin_source)
    assert(mod.spin)
  end)
  teardown(support.close_all)

  local kinds = {
    device = function() return support.open() end,
    buffer = function() return dev:buffer("f32", 4) end,
    ["host buffer"] = function() return dev:host("f32", 4) end,
    module = function() return dev:compile(support.spin_source) end,
    kernel = function() return mod:kernel("spin", "i64, inout i32*, i32") end,
    stream = function() return dev:stream {} end,
    op = function() return dev:current():mark() end,
  }

  for kind, make in pairs(kinds) do
    it(kind .. " closes, again and again, and says so", function()
      local handle = make()
      assert.equal(kind, gpu.type(handle))
      assert.equal("gpulua." .. kind, debug.getmetatable(handle).__name)
      assert.equal("gpulua." .. kind, getmetatable(handle))
      assert.truthy(tostring(handle):find("^gpulua%." .. kind), tostring(handle))
      assert.is_nil(tostring(handle):find("closed", 1, true))
      handle:close()
      handle:close()
      assert.equal("closed " .. kind, gpu.type(handle))
      assert.equal(("gpulua.%s (closed)"):format(kind), tostring(handle))
    end)

    it(kind .. " ends with <close>", function()
      local kept
      do
        local handle <close> = make()
        kept = handle
      end
      assert.equal("closed " .. kind, gpu.type(kept))
    end)

    it(kind .. ", closed, is refused by each of its methods", function()
      local handle = make()
      handle:close()
      local metatable = debug.getmetatable(handle)
      local methods = metatable.methods or metatable.__index
      local count = 0
      for name, method in pairs(methods) do
        if name ~= "close" then
          count = count + 1
          local what = kind == "host buffer" and "buffer" or kind
          support.raises("Closed", "attempt to use a closed " .. what, method, handle)
        end
      end
      assert.truthy(count >= 3, count)
    end)

    if kind ~= "device" then -- open devices are kept until they are closed
      it(kind .. " ends when it is collected", function()
        support.without_leak(dev, function()
          for _ = 1, 20 do
            make()
          end
        end)
      end)
    end
  end

  it("fields of a closed one raise, too", function()
    for _, kind in ipairs { "device", "buffer", "host buffer", "module", "stream", "op" } do
      local handle = kinds[kind]()
      handle:close()
      support.raises("Closed", "closed", function() return handle.label end)
    end
  end)

  it("tasks end their scope with cancel", function()
    local task = gpu.spawn(function() gpu.sleep(60) end)
    task:close()
    local ok, err = task:join(10)
    assert.is_false(ok)
    support.is_error(err, "Cancelled")
  end)

  it("gpu.type wants a value", function()
    support.raises("InvalidArgument", "argument 1 of type", gpu.type)
  end)

  it("buffers name their device, labels and unknown fields", function()
    local x <close> = dev:buffer("f32", 4)
    assert.equal(dev, x.device)
    assert.equal("", x.label)
    assert.is_nil(x.no_such_field)
    support.raises("InvalidArgument", "not indexed by numbers", function() return x[1] end)
    local op = dev:current():mark()
    assert.is_nil(op.no_such_field)
    op:await()
    local stream <close> = dev:stream { label = "side" }
    assert.equal("side", stream.label)
    assert.is_nil(stream.no_such_field)
    assert.is_nil(mod[1])
  end)

  it("two handles of one stream are equal", function()
    assert.is_true(dev:current() == dev:current())
    local other <close> = dev:stream {}
    assert.is_false(dev:current() == other)
  end)
end)
