-- Check mode by hashes: what a launch changes without declaring it. GPUs have no other; the CPU device does it when
-- asked for, so that these specs are the same for both.

local gpu = require "gpulua"
local support = require "spec.support"

local one = support.one
local name = os.getenv "GPULUA_DEVICE" or "cpu"
local is_cuda = name:find "^cuda" ~= nil

local source = [[
  extern "C" __global__ void put(int *x, int at, int v) { x[at] = v; }
  extern "C" __global__ void blur(const int *src, int *dst, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dst[i] = src[i];
    if (i == 209) ((int *)src)[1024] = 1;
  }
  extern "C" __global__ void bytes(unsigned char *x, int from, int to) { for (int i = from; i < to; i++) x[i] ^= 5; }
  extern "C" __global__ void add(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
  }
  extern "C" __global__ void nothing() {}
  extern "C" __global__ void same(const int *x) { ((int *)x)[3] = x[3]; }
]]

do -- where the suite's devices are: each transport runs this for itself
  describe("check mode by hashes", function()
    local dev, plain, mod, free, opened

    local function open(opts)
      local made = gpu.device(name, opts)
      opened[#opened + 1] = made
      return made
    end

    setup(function()
      opened = {}
      dev = open { check = is_cuda or "hashes" }
      plain = open { check = false }
      mod = dev:compile(source)
      free = plain:compile(source)
    end)
    teardown(function()
      for _, made in ipairs(opened) do
        made:close()
      end
    end)

    local function finds(code, parts, k, config, ...)
      return (support.finds("hashes_spec.lua", code, parts, k:launch(config, ...)))
    end

    local function row(n, label, of)
      return (of or dev):upload("i32", n, function(i) return i end, { label = label })
    end

    it("tells of the line that launched it, and of no place in the kernel, which nobody has seen", function()
      local x <close> = row(8)
      local k = dev:compile([[
        extern "C" __global__ void k(const int *x) { ((int *)x)[threadIdx.x] = 9; }]]).k
      local op, line = k:launch({ grid = 1, block = 2 }, x), debug.getinfo(1, "l").currentline
      local err = support.finds("hashes_spec.lua", "UndeclaredAccess", { "kernel 'k'" }, op)
      assert.equal(line, err.op.line)
      assert.is_nil(err.places)
      assert.is_nil(err.message:find "thread")
    end)

    it("tells of a write to what is declared in, with its byte; without it nobody does", function()
      local function run(of, m)
        local src <close> = of:buffer("i32", 2048, { label = "src" }):fill(0)
        local dst <close> = of:buffer("i32", 2048)
        if of == plain then
          return m.blur:launch({ grid = 4, block = 64 }, src, dst, 256):await()
        end
        return finds("UndeclaredAccess", "kernel 'blur' wrote buffer 'src', declared in, at byte 4096, allocation ",
          m.blur, { grid = 4, block = 64 }, src, dst, 256)
      end
      assert.truthy(run(dev, mod).message:find "allocation %d+, argument 1 %('src'%)$")
      run(plain, free)
    end)

    it("tells of a hand-written signature that hides the write", function()
      local x <close> = row(100)
      finds("UndeclaredAccess", { "kernel 'put' wrote argument 1 ('x'), declared in, at byte 28, allocation " },
        mod:kernel("put", "x: in i32*, at: i32, v: i32"), one, x, 7, 1000)
      local y <close> = row(100, nil, plain)
      free:kernel("put", "x: in i32*, at: i32, v: i32"):launch(one, y, 7, 1000):await()
      assert.equal(1000, y:read(8, 8)[1])
    end)

    it("narrows it down to the byte, or to a piece of 64", function()
      local lie = mod:kernel("bytes", "x: in u8*, i32, i32")
      local x <close> = dev:buffer("u8", 5000, { label = "bytes" }):fill(7)
      for _, at in ipairs { 0, 1, 63, 64, 130, 4095, 4998, 4999 } do
        finds("UndeclaredAccess", "wrote buffer 'bytes', declared in, at byte " .. at .. ",", lie, one, x, at, at + 1)
      end
      finds("UndeclaredAccess", "at byte 66,", lie, one, x, 66, 68)
      finds("UndeclaredAccess", "at one of the bytes 64 to 127,", lie, one, x, 66, 80)
      finds("UndeclaredAccess", "at one of the bytes 4992 to 4999,", lie, one, x, 4995, 4997)
    end)

    it("tells of a neighbour by its name", function()
      local function run(of, m, f)
        local x <close> = row(4, "mine", of)
        local y <close> = row(4, "other", of)
        local base = of == dev and 65536 or 0
        for distance = base, base + 65536, 512 do
          x:fill(0)
          y:fill(5)
          local op = m.put:launch(one, x, distance // 4 + 2, 1)
          if f(op, y) then
            return distance
          end
        end
      end
      local err
      local distance = run(dev, mod, function(op)
        local ok
        ok, err = op:join()
        return not ok and err.message:find("wrote buffer 'other'", 1, true)
      end)
      support.is_error(err, "OutOfBounds", {
        "kernel 'put' wrote buffer 'other', which is not declared there, at byte 8",
        distance - 8 .. " bytes behind the nearest range declared, argument 1 ('x'), buffer 'mine'",
      })
      run(plain, free, function(op, y)
        op:await()
        return y:read()[3] == 1
      end)
    end)

    it("tells of a write just outside of every buffer", function()
      local x <close> = row(10, "ten")
      local function fresh()
        return x:fill(0)
      end
      mod.put:launch(one, fresh(), 9, 1):await()
      local err = finds("OutOfBounds", { "kernel 'put' wrote outside of every buffer, at byte 40 counted from " ..
        "buffer 'ten', allocation ", "of 40 bytes, just behind the nearest range declared, argument 1 ('x'), " ..
        "buffer 'ten'" }, mod.put, one, fresh(), 10, 1)
      assert.truthy(err.hint ~= "")
      finds("OutOfBounds", "at byte 44 counted", mod.put, one, fresh(), 11, 1)
      finds("OutOfBounds", "4 bytes behind", mod.put, one, fresh(), 11, 2)
      local y <close> = row(10, "further")
      local before = { "wrote outside of every buffer, at byte -4 counted from buffer 'further'",
        "just before the nearest range declared" }
      finds("OutOfBounds", before, mod.put, one, y:fill(0), -1, 0x5a5a5a5a)
    end)

    it("knows parts of buffers", function()
      local x <close> = row(100, "whole")
      mod.put:launch(one, x:slice(3, 6), 3, 1):await()
      finds("OutOfBounds", { "wrote buffer 'whole', which is not declared there, at byte 24", "just behind" }, mod.put,
        one, x:slice(3, 6), 4, 1)
      x:fill(0)
      finds("OutOfBounds", { "wrote buffer 'whole', which is not declared there, at byte 4", "just before" }, mod.put,
        one, x:slice(3, 6), -1, 0x5a5a5a5a)
      x:fill(1)
      -- Of one buffer: one part is read, another written, by launches that have it the other way round each time.
      local a, b = x:slice(1, 10), x:slice(11, 20)
      for _ = 1, 4 do
        mod.add:launch({ grid = 1, block = 32 }, a, b, 10)
        mod.add:launch({ grid = 1, block = 32 }, b, a, 10)
      end
      assert.are.same({ 55, 34, 1 }, { x:read(1, 1)[1], x:read(20, 20)[1], x:read(21, 21)[1] })
      finds("OutOfBounds", { "wrote buffer 'whole', which is not declared there", "at byte 80" }, mod.add,
        { grid = 1, block = 32 }, a, b, 11)
    end)

    it("tells of freed memory", function()
      local x <close> = row(10, "alive")
      row(10, "gone"):close()
      support.settle(dev)
      local err
      for distance = 65536, 131072, 512 do
        local ok
        ok, err = mod.put:launch(one, x:fill(0), distance // 4, 9):join()
        if not ok and err.code == "UseAfterFree" then
          break
        end
      end
      support.is_error(err, "UseAfterFree", "kernel 'put' wrote buffer 'gone', allocation ")
      assert.truthy(err.message:find "allocation %d+, which was freed, at byte 0$")
      support.works(dev)
    end)

    it("tells of a kernel without arguments that are memory, and of none that does nothing", function()
      mod.nothing:launch(one):await()
      local x <close> = row(10, "secret")
      local far = dev:compile [[
        extern "C" __global__ void address(const int *x, long long *out) { out[0] = (long long)x; }
        extern "C" __global__ void at(long long to) { *(int *)to = 77; }]]
      local where <close> = dev:buffer("i64", 1)
      far.address:launch(one, x, where)
      finds("OutOfBounds", { "wrote buffer 'secret', which is not declared there, at byte 0",
        "the launch declares no buffer" }, far.at, one, where:read()[1])
    end)

    it("cannot see what leaves the bytes as they are", function()
      local x <close> = row(10)
      mod.same:launch(one, x):await()
    end)

    it("does not hold other work against a launch", function()
      local streams = {}
      for i = 1, 4 do
        streams[i] = dev:stream {}
      end
      local big <close> = dev:buffer("u8", 4 << 20):fill(1)
      local there <close> = dev:buffer("u8", 4 << 20)
      local text = ("x"):rep(#there)
      local x <close> = row(1000)
      local y <close> = dev:buffer("i32", 1000):fill(0)
      for i = 1, 20 do
        local on = streams[i % 4 + 1]
        on:use(function() big:fill(i) end)
        streams[(i + 1) % 4 + 1]:use(function() there:copy(big) end)
        mod.add:launch({ grid = 8, block = 128, stream = streams[(i + 2) % 4 + 1] }, x, y, 1000)
        there:write(text)
        streams[i % 4 + 1]:wait(streams[(i + 2) % 4 + 1]:mark())
      end
      assert.equal(20000, y:read(1000, 1000)[1])
      for _, stream in ipairs(streams) do
        stream:close()
      end
    end)

    it("finds nothing in random programs that are right, and computes the same", function()
      local function run(of, m, seed)
        local random = support.random(seed)
        local function below(n)
          return random(0, n - 1)
        end
        local bufs, out = {}, {} -- of between 50 and 450 elements
        for i = 1, 8 do
          bufs[i] = of:buffer("i32", 50 + 37 * i):fill(i)
        end
        for _ = 1, 150 do
          local what, i, k = below(6), below(8) + 1, below(8) + 1
          local x, y = bufs[i], bufs[k]
          if what == 0 then
            x:fill(below(100))
          elseif what == 1 then
            x:free()
            bufs[i] = of:buffer("i32", 50 + below(400)):fill(below(9))
          elseif what == 2 and i ~= k then
            x:slice(11, 30):copy(y:slice(1, 20))
          elseif i ~= k then
            local from = below(20) + 1
            m.add:launch({ grid = 1, block = 32 }, x:slice(from, from + 29), y:slice(20, 49), 30)
          else
            m.put:launch(one, x, below(50), below(1000))
          end
        end
        for i, x in ipairs(bufs) do
          out[i] = x:read()
          x:close()
        end
        return out
      end
      for seed = 1, 5 do
        assert.are.same(run(plain, free, seed), run(dev, mod, seed))
      end
    end)

    it("leaves a failure that is another's as it is, and the device usable", function()
      if is_cuda then
        pending "a failed assert ends the device there"
      end
      local bad = dev:compile([[
        #include <cassert>
        extern "C" __global__ void bad(const int *x) { ((int *)x)[0] = 9; assert(x == 0); }]]).bad
      local x <close> = row(10, "x")
      local op = bad:launch(one, x)
      support.raises("KernelFailed", "assertion", op.await, op)
      mod.put:launch(one, x, 1, 5):await()
      assert.equal(5, x:read(2, 2)[1])
      support.works(dev)
    end)

    it("fails what needs the output of a launch that was caught", function()
      local x <close> = row(10, "x")
      local y <close> = dev:buffer("i32", 10):fill(0)
      local lie = mod:kernel("add", "x: inout i32*, y: in i32*, i32")
      lie:launch({ grid = 1, block = 10 }, x, y, 10)
      support.raises("DependencyFailed", "declared in, at", function() x:read() end)
      support.works(dev)
    end)

    it("leaves nothing behind", function()
      support.without_leak(dev, function()
        for i = 1, 20 do
          local x <close> = row(1000 * i)
          local y <close> = dev:buffer("i32", 1000 * i):fill(0)
          mod.add:launch({ grid = 8 * i, block = 128 }, x, y, 1000 * i):await()
        end
      end)
      local direct <close> = dev:memory { from = "direct" }
      for _ = 1, 5 do
        local x <close> = direct:buffer("i32", 100):fill(3)
        mod.nothing:launch(one):await()
        assert.equal(3, x:read()[1])
      end
    end)

    it("fails launches while there is no memory for the hashes, and only then", function()
      if is_cuda then
        pending "the driver would need the memory for itself"
      end
      local bytes = support.read_file("/proc/meminfo"):match "MemTotal:%s*(%d+)" * 1024
      local full <close> = open { check = "hashes", budget = bytes }
      local put = full:compile(source).put
      local x <close> = full:buffer("i32", 10):fill(0)
      put:launch(one, x, 0, 1):await()
      local ok, big = pcall(full.buffer, full, "u8", bytes // 16 * 15 - (96 << 20)) -- nobody touches it
      if not ok then
        pending(big.message)
      end
      local op = put:launch(one, x, 1, 1)
      support.raises("OutOfMemory", "check mode has no room for its hashes", op.await, op)
      big:free()
      full:synchronize()
      full:trim()
      put:launch(one, x:fill(0), 1, 1):await()
      assert.equal(1, x:read()[2])
    end)

    it("says that it decides no order, and gives none", function()
      assert.are.same({}, dev:order())
      support.raises("Unsupported", "decides nothing about the order", open,
        { check = is_cuda or "hashes", order = "0" })
      support.raises("InvalidArgument", "true, false or \"hashes\" expected", open, { check = "hash" })
    end)
  end)
end

describe("check mode by hashes", function()
  local script = [[
    local gpu = require "gpulua"
    local dev = gpu.device()
    local put = dev:compile('extern "C" __global__ void put(int *x) { x[5] = 7; }'):kernel("put", "in i32*")
    put:launch({ grid = 1, block = 1 }, dev:buffer("i32", 10, { label = "x" }):fill(0)):await()]]

  it("comes from the command line and the environment", function()
    local how = is_cuda and "1" or "hashes"
    local output = support.script(script, "GPULUA_CHECK=" .. how)
    assert.truthy(output:find("kernel 'put' wrote buffer 'x', declared in, at byte 20, allocation", 1, true), output)
    assert.equal("", (support.script(script, "GPULUA_CHECK=")))
    local path = os.tmpname()
    support.write_file(path, script)
    local pipe = io.popen(("%s/gpulua --check=%s %s 2>&1"):format(os.getenv "GPULUA_BUILD" or "build", how, path))
    output = pipe:read "a"
    pipe:close()
    os.remove(path)
    assert.truthy(output:find("wrote buffer 'x', declared in, at byte 20", 1, true), output)
  end)

  it("needs a compiler, and says so when the device is opened", function()
    local output, code = support.script([[
      local gpu = require "gpulua"
      local ok, err = pcall(gpu.device, nil, { check = os.getenv "GPULUA_DEVICE":find "^cuda" ~= nil or "hashes" })
      print(ok, err.code, err.message)
      gpu.device(nil, { check = false }):buffer("i32", 3):fill(1):read()]],
      ("GPULUA_DEVICE=%s GPULUA_CACHE=/nonexistent GPULUA_CXX=/nowhere/c++ GPULUA_LIBNVRTC=/nowhere/libnvrtc.so")
        :format(name))
    assert.equal(0, code, output)
    assert.truthy(output:find("^false\tLibraryUnavailable\tcheck mode on this device needs a kernel of its own: "),
      output)
    assert.truthy(output:find("/nowhere/", 1, true), output)
  end)
end)
