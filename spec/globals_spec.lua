-- Scripts that take away, or replace, what Lua's library has, while gpulua works.

local support = require "spec.support"

describe("gpulua's own code does what it did", function()
  local work <const> = [==[
    local gpu, npy, wav = require "gpulua", require "gpulua.npy", require "gpulua.wav"
    local assert, pcall, print, tostring, remove, exit = assert, pcall, print, tostring, os.remove, os.exit
    local pairs, next, metatable, libraries = pairs, next, getmetatable "", { string, table, math, utf8, coroutine }
    local path <const> = os.tmpname()
    %s
    local dev = gpu.device("cpu", { isolate = "none", trace = true })
    local x = dev:upload("f32", { 3, -4, 5, 6, 7, 8, 9, 10 }, { label = "x" })
    assert(gpu.map("where(x > 0, sqrt(x * x + c), 0)", { x = x, c = 16 }):read()[1] == 5)
    assert(gpu.reduce("max", x):get() == 10 and gpu.reduce("argmin", x):get() == 2)
    assert(dev:fft { shape = 8, kind = "r2c" }:forward(x) and tostring(dev:fft { shape = 8 }))
    local square = dev:upload("f32", { 1, 2, 3, 4 }):view("f32", { 2, 2 })
    assert(dev:blas():gemm { a = square, b = square }:read()[1] == 7)
    dev:rng { seed = 1 }:poisson(dev:buffer("u32", 8), 3)
    npy.save_all({ x = x }, path)
    assert(npy.load_all(dev, path).x:read()[2] == -4)
    wav.save(gpu.map("x / 10", { x = x }), path, { rate = 360, bits = 16 })
    assert(wav.load(dev, path))
    local fast = dev:graphed(function(factor) x:fill(factor) end)
    for i = 1, 4 do fast(i + 0.5) end
    assert(fast:explain())
    for what, f in pairs {
      ["argument"] = function() gpu.map("x + nothing", { x = x }) end,
      ["compiler"] = function() dev:compile "nonsense" end,
      ["option"] = function() dev:buffer("f32", 4, { labels = "x" }) end,
      ["method"] = function() dev:blas { wrong = 1 } end,
      ["hook"] = function() dev.on_lost(5, f) end,
      ["file"] = function() npy.load(dev, path) end,
    } do
      local ok, err = pcall(f)
      assert(not ok and err.code and err.message, what .. ": " .. tostring(err))
    end
    gpu.trace.json(path)
    gpu.trace.timeline(path)
    remove(path)
    assert(tostring(gpu.report()) and tostring(dev:memory_map()) and dev:flight())
    for event in gpu.trace.events() do assert(event.kind) end
    print "works"
    exit(true, true)]==]

  it("when the methods of strings are taken away, or others", function()
    for _, clear in ipairs { "metatable.__index = nil", "metatable.__index = function() error 'mine' end",
      "for name in pairs(string) do string[name] = nil end", "string.format = nil" } do
      local output, code = support.script(work:format(clear))
      assert.equal("works\n", output, clear)
      assert.equal(0, code)
    end
  end)

  it("when the libraries have nothing any more, or something else", function()
    for _, value in ipairs { "nil", "error" } do
      local output, code = support.script(work:format(([[
        for i = 1, 5 do
          for name in next, libraries[i] do libraries[i][name] = %s end
        end]]):format(value)))
      assert.equal("works\n", output, value)
      assert.equal(0, code)
    end
  end)
end)
