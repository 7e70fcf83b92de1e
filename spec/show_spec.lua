-- What the prompt shows of values (on a terminal: prompt_spec.lua).

local gpu = require "gpulua"
local support = require "spec.support"

describe("a value at the prompt:", function()
  local show = require "gpulua.show".show
  local dev

  setup(function() dev = support.open() end)
  teardown(support.close_all)

  --- The lines behind the first, which names the buffer.
  local function inside(buffer)
    local name, lines = show(buffer):match "^([^\n]*)\n(.*)$"
    assert.equal(tostring(buffer), name)
    return lines
  end

  it("plain ones are shown as print shows them", function()
    assert.equal("1\tx y\tnil\ttrue\t1.5", show(1, "x y", nil, true, 1.5))
    assert.equal("nil", show(nil))
    assert.equal("", show())
    assert.equal(tostring(print), show(print))
    assert.equal(tostring(io.stdout), show(io.stdout))
    assert.equal("1\n{ 1 }\nfoo\nbar", show(1, { 1 }, "foo\nbar"))
    assert.equal("shown", show(setmetatable({}, { __tostring = function() return "shown" end })))
  end)

  it("tables briefly", function()
    assert.equal("{}", show {})
    assert.equal('{ 1, 2.5, "a", true, {}, {...}, function }', show { 1, 2.5, "a", true, {}, { 1 }, print })
    assert.equal('{ a = 1, ["end"] = 2, ["x y"] = 3 }', (show { ["x y"] = 3, a = 1, ["end"] = 2 }))
    assert.equal("{ 1, [-1] = 0, [2.5] = 1, [7] = 2, b = 3, [true] = 4 }",
      show { 1, b = 3, [true] = 4, [2.5] = 1, [-1] = 0, [7] = 2 })
    local long = {}
    for i = 1, 3000000 do long[i] = i end
    assert.equal("{ 1, 2, 3, 4, 5, 6, 7, 8, ... 2999992 more, ... (its first 1000000 keys were looked at) }",
      show(long))
    for i = 100, #long do long[i] = nil end
    for i = 1, 12 do long[("k%02d"):format(i)] = i end
    assert.equal("{ 1, 2, 3, 4, 5, 6, 7, 8, ... 91 more, k01 = 1, k02 = 2, k03 = 3, k04 = 4, k05 = 5, k06 = 6," ..
      " k07 = 7, k08 = 8, ... 4 more fields }", show(long))
    assert.equal(('{ "%s..." }'):format(("x"):rep(40)), show { ("x"):rep(41) })
    assert.equal([[{ "a\n\"\\\0\27" }]], show { 'a\n"\\\0\27' })
    local ring = {}
    ring.ring = ring
    assert.equal("{ ring = {...} }", show(ring))
    local function never() error "a metamethod was called" end
    assert.equal("named { 1, x = 2 }", show(setmetatable({ 1, x = 2 }, { __name = "named", __index = never,
      __len = never, __pairs = never })))
  end)

  it("buffers with both ends, the smallest, the largest and the mean number, and NaN", function()
    assert.equal("  1.0  2.5  -3.0\n  min -3.0, max 2.5, mean 0.166667, 0 NaN",
      inside(dev:upload("f32", { 1, 2.5, -3 })))
    assert.equal("  0  1  2  3  ...  96  97  98  99\n  min 0, max 99, mean 49.5",
      inside(dev:upload("i32", 100, function(i) return i - 1 end)))
    assert.equal("  nan  1.0  inf  nan\n  min 1.0, max inf, mean inf, 2 NaN",
      inside(dev:upload("f64", { 0 / 0, 1, math.huge, -(0 / 0) })))
    assert.equal("  nan\n  all of them NaN", inside(dev:upload("f32", { 0 / 0 })))
    assert.equal("  18446744073709551615  9223372036854775808  7\n  min 7, max 18446744073709551615, mean 9.22337e+18",
      inside(dev:upload("u64", { -1, math.mininteger, 7 })))
    assert.equal("  -9223372036854775808  9223372036854775807\n" ..
      "  min -9223372036854775808, max 9223372036854775807, mean 0.0",
      inside(dev:upload("i64", { math.mininteger, math.maxinteger })))
    assert.equal("  3.0+4.0i  0.0-1.5i\n  min |z| 1.5, max |z| 5.0, mean 1.5+1.25i, 0 NaN",
      inside(dev:upload("c64", { { 3, 4 }, { 0, -1.5 } })))
    assert.equal("  0.0-0.0i  -0.0+0.0i\n  min |z| 0.0, max |z| 0.0, mean 0.0+0.0i, 0 NaN",
      inside(dev:upload("c128", { { 0, -0.0 }, { -0.0, 0 } })))
    assert.equal("  nan+nani  0.0-infi", (inside(dev:upload("c128", { { 0 / 0, -(0 / 0) }, { 0, -math.huge } }))
      :match "[^\n]*"))
    local label = dev:buffer("u8", 2, { label = "mask" }):fill(1)
    assert.truthy(show(label):find("mask", 1, true))
  end)

  it("matrices in rows and columns, and the first of many", function()
    local x = dev:upload("i32", 12, function(i) return i * i end)
    assert.equal("    1    4    9\n   16   25   36\n   49   64   81\n  100  121  144\n  min 1, max 144, mean 54.1667",
      inside(x:view("i32", { 4, 3 })))
    assert.equal("  [1,...]:\n   1   4   9\n  16  25  36\n  min 1, max 144, mean 54.1667",
      inside(x:view("i32", { 2, 2, 3 })))
    local wide = dev:upload("i32", 20 * 30, function(i) return i end):view("i32", { 20, 30 })
    assert.equal([[
    1    2    3    4  ...   27   28   29   30
   31   32   33   34  ...   57   58   59   60
   61   62   63   64  ...   87   88   89   90
  ...
  511  512  513  514  ...  537  538  539  540
  541  542  543  544  ...  567  568  569  570
  571  572  573  574  ...  597  598  599  600
  min 1, max 600, mean 300.5]], inside(wide))
  end)

  it("large ones in pieces, which is said, and with both ends", function()
    local count <const> = 3000001
    local buffer <close> = dev:buffer("u8", count):fill(1)
    buffer:write({ 7 }, 1)
    buffer:write({ 9 }, count)
    assert.equal("  7  1  1  1  ...  1  1  1  9\n" ..
      "  of 3000001 elements 1048576 looked at, in 64 pieces: min 1, max 9, mean 1.00001", inside(buffer))
    local whole <close> = dev:buffer("u8", 1 << 20):fill(3)
    assert.is_nil(show(whole):find "looked at")
  end)

  it("host buffers, slices and scalars as well", function()
    local host = dev:host("i16", 3)
    host:write { 5, 6, 7 }
    assert.equal("  5  6  7\n  min 5, max 7, mean 6.0", inside(host))
    assert.equal("  2.0  3.0\n  min 2.0, max 3.0, mean 2.5, 0 NaN", inside(dev:upload("f32", { 1, 2, 3 }):slice(2, 3)))
    assert.equal("gpulua.scalar f32 on " .. dev.name .. ": 6.0",
      show((gpu.reduce("sum", dev:upload("f32", { 1, 2, 3 })))))
  end)

  it("what waits, with what came of it", function()
    local task = gpu.spawn(function() gpu.sleep(0.01) return 1, "a", { 2 } end)
    assert.equal(tostring(task), show(task))
    assert.truthy(show(task):find "%(%a+%)$")
    task:await()
    assert.equal(tostring(task) .. ': 1, "a", {...}', show(task))
    local failed = gpu.spawn(error, "oops", 0)
    failed:join()
    assert.equal(tostring(failed) .. ': "oops"', show(failed))
    local op = dev:current():mark()
    op:await()
    assert.truthy(show(op):find("^" .. tostring(op):gsub("%p", "%%%0") .. ": done"), show(op))
    local kernel = dev:compile([[ extern "C" __global__ void one(int n, const float *x) { } ]]).one
    assert.equal(tostring(kernel) .. " (" .. kernel:signature() .. ")", show(kernel))
  end)

  it("what was lost with its device says so", function()
    if not support.is_isolated() then
      pending "the device lives in this process"
    end
    local own <close> = gpu.device(nil, { isolate = "process" })
    local lost = own:buffer("f32", 3):fill(0)
    support.lose(own)
    local shown = show(lost)
    assert.truthy(shown:find "^gpulua.buffer f32%[3%] %(stale%) on .*\n  [^\n]*was lost with the device", shown)
  end)

  it("what cannot be read says why", function()
    local freed = dev:buffer("f32", 3):fill(0)
    freed:free()
    assert.equal(tostring(freed), show(freed))
    assert.truthy(show(freed):find "f32%[3%] %(freed%) on ")
    assert.truthy(show(dev:buffer("f32", 1, { label = "(freed)" }):fill(1)):find("min 1.0", 1, true))
    local closed = dev:buffer("f32", 3)
    closed:close()
    assert.equal(tostring(closed), show(closed))
    local bad = dev:compile([[
      #include <gpulua_kernel.h>
      extern "C" __global__ void bad(int *x, gpulua_ctx ctx) {
        if (gpulua_check(ctx, x[0] == 1, "x is %d", x[0])) x[0] = 2;
      }]]).bad
    local x = dev:buffer("i32", 1):fill(0)
    local op = bad:launch(support.one, x)
    op:join()
    assert.truthy(show(op):find("KernelFailed: kernel 'bad' failed", 1, true), show(op))
    assert.truthy(show(op):find("x is 0", 1, true))
    assert.truthy(inside(x):find "^  [^\n]*bad[^\n]*$", show(x))
  end)

  it("work in flight is waited for, for a while", function()
    support.wants_time(pending)
    local own = support.open()
    local spin = own:compile(support.spin_source).spin
    local x = own:buffer("i32", 4):fill(1)
    spin:launch(support.one, support.ticks(0.05), x, 5):await()
    assert.equal("  5  1  1  1\n  min 1, max 5, mean 2.0", inside(x))
    support.under_way(2.5, function(seconds, seen)
      local op = spin:launch(support.one, support.ticks(seconds), x, 7)
      local began = support.now()
      local text, of_op = inside(x), show(op)
      local took = support.now() - began
      seen()
      assert.equal("  work on it is not over after 1 s", text)
      assert.truthy(took < seconds * 0.8, took)
      assert.equal(tostring(op) .. ": not over", of_op)
      op:await()
    end)
    assert.equal("  7  1  1  1\n  min 1, max 7, mean 2.5", inside(x))
  end)
end)
