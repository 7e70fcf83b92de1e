-- What errors say to who made a plausible mistake: which argument, as scripts count them, what came instead, what
-- to do.

local gpu = require "gpulua"
local support = require "spec.support"

describe("messages", function()
  local dev, kernel, x, op, task, stream

  setup(function()
    dev = support.open()
    kernel = dev:compile([[
      extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
      }]]).saxpy
    x = dev:buffer("f32", 8):fill(0)
    op = dev:current():mark()
    op:await()
    task = gpu.spawn(function() end)
    task:await()
    stream = dev:stream()
  end)
  teardown(support.close_all)

  describe("count arguments as scripts do:", function()
    it("of methods, self is none", function()
      support.raises("InvalidArgument", { "argument 1 of copy", "table" }, x.copy, x, {})
      support.raises("InvalidArgument", { "argument 1 of copy", "nothing" }, x.copy, x)
      support.raises("InvalidArgument", { "argument 1 of copy", "i32", "f32" }, x.copy, x, dev:buffer("i32", 8))
      support.raises("OutOfBounds", { "argument 1 of copy", "4", "8" }, x.copy, x, dev:buffer("f32", 4))
      support.raises("InvalidArgument", { "argument 2 of write", "string" }, x.write, x, { 1 }, "a")
      support.raises("InvalidArgument", { "argument 1 of read", "string" }, x.read, x, "a")
      support.raises("InvalidArgument", { "argument 2 of read", "1.5" }, x.read, x, 1, 1.5)
      support.raises("InvalidArgument", { "argument 1 of on_done", "number" }, op.on_done, op, 5)
      support.raises("InvalidArgument", { "argument 1 of use", "number" }, stream.use, stream, 5)
      support.raises("InvalidArgument", { "argument 1 of use", "no value" }, stream.use, stream)
      support.raises("InvalidArgument", { "argument 3 of upload", "table" }, dev.upload, dev, "f32", 8, { 1 })
      support.raises("InvalidArgument", "argument 1 of fill: it is missing", x.fill, x)
    end)

    it("of functions", function()
      support.raises("InvalidArgument", { "argument 1 of run", "number" }, gpu.run, 5)
      support.raises("InvalidArgument", { "argument 2 of timeout", "nil" }, gpu.timeout, 1)
      support.raises("InvalidArgument", "argument 1 of type", gpu.type)
      support.raises("InvalidArgument", { "argument 1 of spawn", "gpulua.buffer" }, gpu.spawn, x)
      support.raises("InvalidArgument", { "item 1 of all", "nil" }, gpu.all, nil)
      support.raises("InvalidArgument", { "item 2 of all", "nil" }, gpu.all, op, nil)
      support.raises("InvalidArgument", { "item 2 of any", "nil" }, gpu.any, op, nil)
    end)
  end)

  it("say what to do where Lua cannot compute with what lies on the device", function()
    local scalar = gpu.reduce("sum", x)
    local function raises(message, hint, f)
      local err = support.raises("InvalidArgument", message, f)
      assert.truthy(err.hint:find(hint, 1, true), err.hint)
    end
    raises("a scalar lies on the device", "scalar:get()", function() return scalar + 1 end)
    raises("a scalar lies on the device", "scalar:get()", function() return 2 * scalar end)
    raises("a scalar lies on the device", "scalar:get()", function() return scalar < 1 end)
    raises("a scalar lies on the device", "scalar:get()", function() return "sum " .. scalar end)
    raises("buffer's elements lie on the device", "gpu.map(", function() return x * 2 end)
    raises("buffer's elements lie on the device", "buffer:read()", function() return -x end)
    raises("kernel 'saxpy' is not called, but launched", "kernel:launch(threads", function() kernel(8, 8, 2, x, x) end)
    raises("got string and buffer", "{ a = 2, x = buffer }", function() gpu.map("x + 1", x) end)
    -- Other values may know what to do with it.
    local knows = setmetatable({}, { __mul = function(a, b) return { a, b } end })
    assert.are.same({ x, knows }, x * knows)
    assert.are.same({ knows, x }, knows * x)
    assert.are.same({ scalar, knows }, scalar * knows)
    assert.is_true(x == x and x ~= scalar)
  end)

  it("refuse a time that is none wherever one is taken, also for what is over", function()
    local pending = gpu.spawn(function() gpu.sleep(0.02) end)
    for text, seconds in pairs { ["-1"] = -1, nan = 0 / 0, string = "1", table = {}, ["-inf"] = -math.huge } do
      for _, item in ipairs { op, task, pending, x } do
        for _, how in ipairs { "await", "join" } do
          support.raises("InvalidArgument", { "argument 1 of " .. how .. ": seconds", "got " .. text },
            item[how], item, seconds)
        end
      end
      support.raises("InvalidArgument", { "argument 1 of sleep: seconds", "got " .. text }, gpu.sleep, seconds)
      support.raises("InvalidArgument", { "argument 1 of timeout: seconds", "got " .. text }, gpu.timeout, seconds,
        print)
      support.raises("InvalidArgument", { "argument 1 of step: seconds", "got " .. text }, gpu.step, seconds)
    end
    pending:await()
  end)

  describe("know the colon", function()
    it("of methods called with a dot", function()
      local function hinted(hint, f, ...)
        local err = support.raises("InvalidArgument", "is called on", f, ...)
        assert.truthy(err.hint:find(hint, 1, true), err.hint)
      end
      hinted("buffer:read(", function() x.read() end)
      hinted("device:buffer(", function() dev.buffer("f32", 8) end)
      hinted("kernel:launch(", function() kernel.launch(8, 8, 1, x, x) end)
      hinted("op:await(", function() op.await() end)
      local graph <close> = dev:capture(function() kernel:launch(8, 8, 1, x, x) end)
      local launch, launch_kernel = graph.launch, kernel.launch
      hinted("graph:launch(", function()
        graph:launch()
        launch() -- nor is what the last call had
      end)
      hinted("kernel:launch_kernel(", function()
        kernel:launch(8, 8, 1, x, x)
        launch_kernel()
      end)
      local blas, plan, rng, graphed = dev:blas(), dev:fft { shape = 8 }, dev:rng(), dev:graphed(print)
      hinted("blas:gemm(", function() blas.gemm { a = x, b = x } end)
      hinted("fft:forward(", function() plan.forward(x) end)
      hinted("rng:uniform(", function() rng.uniform(x) end)
      hinted("rng:uniform(", function() rng.uniform() end)
      hinted("rng:state(", function() rng.state() end)
      hinted("rng:close(", function() rng.close() end)
      for _, method in ipairs { "refresh", "graph", "explain", "close" } do
        hinted("graphed:" .. method .. "(", function() graphed[method]() end)
      end
    end)

    it("and name no function that scripts do not know", function()
      local function named(name, f, ...)
        support.raises("InvalidArgument", ("what %s is called on: gpulua.device expected"):format(name), f, ...)
      end
      named("flight", function() dev.flight(nil) end)
      for _, method in ipairs { "hooks", "inject", "rng", "memory_map" } do
        named("a method", dev[method], nil)
        named("a method", function() dev[method](nil) end)
      end
    end)

    it("of functions called with one", function()
      support.raises("InvalidArgument", "with a dot, not a colon", gpu.spawn, gpu, print)
      support.raises("InvalidArgument", "with a dot, not a colon", gpu.sleep, gpu, 1)
      support.raises("InvalidArgument", "with a dot, not a colon", gpu.device, gpu, "cpu")
    end)
  end)

  it("tell two openings of one device apart", function()
    local other = support.open()
    local y <close> = other:buffer("f32", 8):fill(0)
    for _, f in ipairs {
      function() x:copy(y) end,
      function() x:write(y) end,
      function() kernel:launch(8, 8, 1, y, x) end,
      function() kernel:launch({ grid = 1, stream = other:current() }, 8, 1, x, x) end,
      function() stream:wait(other:stream()) end,
    } do
      support.raises("InvalidArgument", "another opening of " .. dev.name, f)
    end
    other:close()
  end)

  it("say how arguments go by name to who gives them in their order", function()
    local blas = dev:blas()
    local function hinted(message, hint, f, ...)
      local err = support.raises("InvalidArgument", message, f, ...)
      assert.truthy(err.hint:find(hint, 1, true), err.hint)
    end
    hinted("gemm: arguments go by name, got a list", "gemm { name = value, ... }; there are: a, alpha, b", blas.gemm,
      blas, { x, x })
    hinted("gemm: a table expected, got buffer", "{ name = value, ... }; there are: a, alpha, b", blas.gemm, blas, x, x)
    hinted("fft: arguments go by name, got a list", "there are: batch, effort", dev.fft, dev, { 8 })
  end)

  it("say what to do where an argument of a launch is of another kind", function()
    local factor = dev:scalar("f32", 2)
    local function hinted(message, hint, ...)
      local err = support.raises("InvalidArgument", message, kernel.launch, kernel, ...)
      assert.truthy(err.hint:find(hint, 1, true), err.hint)
    end
    hinted({ "argument 2 (a)", "gpulua.scalar is not a number" }, "by a pointer, const T *", 8, 8, factor, x, x)
    hinted({ "argument 2 (a)", "gpulua.buffer is not a number" }, "the order of the arguments", 8, 8, x, 2, x)
    hinted({ "argument 3 (x)", "table is not a buffer" }, "dev:upload(type, table)", 8, 8, 2, { 1, 2 }, x)
    hinted({ "number of threads from 1 on", "got gpulua.buffer" }, "", x, 8, 2, x, x)
  end)

  it("say how a table, or a host buffer, comes to the device", function()
    local host, blas, plan, rng = dev:host("f32", 8), dev:blas(), dev:fft { shape = 8, kind = "r2c" }, dev:rng()
    for _, f in ipairs {
      function(value) gpu.map("x + 1", { x = value }) end, function(value) gpu.map("x", { x = x, out = value }) end,
      function(value) gpu.reduce("sum", value) end, function(value) gpu.reduce("sum", x, { out = value }) end,
      function(value) blas:scal { x = value, alpha = 2 } end,
      function(value) blas:dot { x = x, y = x, out = value } end,
      function(value) plan:forward(value) end, function(value) rng:uniform(value) end,
    } do
      local err = support.raises("InvalidArgument", "expected, got table", f, { 1, 2 })
      assert.truthy(err.hint:find("dev:upload(type, table)", 1, true), err.hint)
      err = support.raises("InvalidArgument", "expected, got host buffer", f, host)
      assert.truthy(err.hint:find("buffer:copy(host)", 1, true), err.hint)
    end
  end)

  it("translate the names of element types", function()
    for theirs, ours in pairs { float32 = "f32", float = "f32", int = "i32", int64 = "i64", bool = "u8", half = "f16",
      bfloat16 = "bf16", complex64 = "c64", double = "f64", uint8 = "u8" } do
      local err = support.raises("InvalidArgument", "got " .. theirs, dev.buffer, dev, theirs, 8)
      assert.equal(("'%s' is '%s' here"):format(theirs, ours), err.hint)
    end
    assert.equal("'float32' is 'f32' here", support.raises("InvalidArgument", "argument 1 of view", x.view, x,
      "float32").hint)
    assert.falsy(support.raises("InvalidArgument", "got f33", dev.buffer, dev, "f33", 8).hint:find "here")
    assert.falsy(support.raises("InvalidArgument", "got number", dev.buffer, dev, 8, "f32").hint:find "here")
  end)

  it("say what has another size than a buffer's", function()
    local err = support.raises("OutOfBounds", { "argument 1 of copy", "4", "8" }, x.copy, x, dev:buffer("f32", 4))
    assert.truthy(err.hint:find("buffer:slice(i, j)", 1, true), err.hint)
    assert.are.same({ 0, 4, 8 }, { err.offset, err.length, err.size })
    err = support.raises("OutOfBounds", { "view", "32 bytes", "36" }, x.view, x, "f32", { 3, 3 })
    assert.truthy(err.hint:find("a view has all bytes of the buffer", 1, true), err.hint)
  end)

  it("say what to do instead where a capture is open", function()
    local factor = dev:scalar("f32", 2)
    local function hint_of(f)
      return support.raises("CaptureActive", "cannot be captured", dev.capture, dev, f).hint
    end
    assert.truthy(hint_of(function() factor:set(3) end):find("set it before the launch", 1, true))
    assert.truthy(hint_of(function() x:read() end):find("before the capture, or after the launch", 1, true))
    assert.truthy(hint_of(function() factor:get() end):find("of a graphed function on what its call returns", 1, true))
  end)

  it("list the options that there are", function()
    support.raises("InvalidArgument", { "'lable'", "there are: label" }, dev.buffer, dev, "f32", 8, { lable = "x" })
    support.raises("InvalidArgument", { "'blocks'", "grid, block" }, kernel.launch, kernel,
      { grid = 1, blocks = 8 }, 8, 1, x, x)
    support.raises("InvalidArgument", { "options of stream", "string" }, dev.stream, dev, "label")
  end)

  it("name the number that was given where another one, or something else, was expected", function()
    local mem = dev:memory { oom = "free" }
    for text, f in pairs {
      ["watchdog of device: seconds, more than 0, expected, got number -1"] = function()
        gpu.device("cpu", { watchdog = -1 })
      end,
      ["from 1 on, expected, got number 1.5"] = function() kernel:occupancy(1.5) end,
      ["a priority, a whole number, expected, got number 0.5"] = function() mem:on_oom(print, 0.5) end,
      ["graphed: [options,] a function expected, got number"] = function() dev:graphed(1) end,
      ["item 1 of any: an op, a task or a buffer expected, got number 7"] = function() gpu.any(7) end,
    } do
      support.raises("InvalidArgument", text, f)
    end
    support.raises("OutOfBounds", "write: elements from 9 on are not within 1 to 8", x.write, x, { 1 }, 9)
    support.raises("OutOfBounds", "read: elements from 0 on are not within 1 to 8", x.read, x, 0)
  end)

  it("refuse to set fields of what is no table", function()
    local graph <close> = dev:capture(function() x:fill(1) end)
    local mod = dev:compile [[extern "C" __global__ void k(int *x) { x[0] = 1; }]]
    for kind, handle in pairs { ["a device"] = dev, ["a stream"] = stream, ["an op"] = stream:mark(),
      ["a kernel"] = kernel, ["a module"] = mod, ["a scalar"] = dev:scalar("i32", 1), ["a pool"] = dev:pool(),
      ["a memory"] = dev:memory(), ["a graph"] = graph, ["a buffer"] = x, ["a recorder"] = dev:recorder(),
      ["a task"] = gpu.spawn(function() end) } do
      support.raises("InvalidArgument", "the fields of " .. kind .. " cannot be set: name", function()
        handle.name = 1
      end)
    end
  end)

  it("say that templates are asked for by names", function()
    local template = "template <class T> __global__ void k(T *x) { x[0] = 1; }"
    support.raises("InvalidArgument", { "defines no kernel", "of a template, name the instances", "f<float>" },
      dev.compile, dev, template)
    local err = support.raises("InvalidArgument", "defines no kernel", dev.compile, dev, "__global__ void k(int *x);")
    assert.is_nil(err.message:find("template", 1, true), err.message)
    local declared = "__global__ void k(int *x); __global__ void l(int *x) {}"
    support.raises("CompileFailed", "name 'k'", dev.compile, dev, declared, { names = "k" })
    assert.are.same({ "l" }, dev:compile(declared):kernels())
    support.raises("CompileFailed", {}, dev.compile, dev, template .. " what is this")
    local mod = dev:compile(template .. " __device__ int i;")
    for _, f in ipairs { function() return mod.k end, function() return mod:kernel "k" end } do
      support.raises("InvalidArgument", { "has no kernel 'k'; it has none", "kernel<float>" }, f)
    end
  end)

  it("say that of several kernels of one name a cast chooses", function()
    local source = [[__global__ void f(int n, float *x) { x[0] = n; }
      __global__ void f(float by, float *x) { x[0] = by; }]]
    local only = "extern \"C\" __global__ void k(int *x) { x[0] = 1; }"
    local mod = dev:compile(source .. only)
    assert.are.same({ "k" }, mod:kernels())
    support.raises("InvalidArgument", { "has no kernel 'f'; it has 'k'", "(void (*)(float *))kernel" },
      function() return mod.f end)
    support.raises("InvalidArgument", "defines no kernel", dev.compile, dev, source)
    local cast = "(void (*)(float, float *))f"
    local buffer <close> = dev:buffer("f32", 1)
    dev:compile(source, { names = cast })[cast]:launch(1, 2.5, buffer)
    assert.are.same({ 2.5 }, buffer:read())
  end)

  it("say which headers the CPU device has not got", function()
    if support.is_gpu() then
      pending "NVRTC says what it says"
    end
    local included = '#include <cub/cub.cuh>\nextern "C" __global__ void k(int *x) { x[0] = 1; }'
    support.raises("CompileFailed", { "cub/cub.cuh", "CUB, cuRAND and their kin are not on the CPU device" },
      dev.compile, dev, included)
    local err = support.raises("CompileFailed", "nobody", dev.compile, dev,
      'extern "C" __global__ void k(int *x) { x[0] = nobody; }')
    assert.is_nil(err.message:find("CUB", 1, true), err.message)
  end)

  it("are none of kernels whose signatures only look as if they had references", function()
    local mod = dev:compile [[
      template <class T, int N> struct Box { T value; static const int v = N; };
      template <class F> __global__ void never(F &&f, const int &n) { }
      template <class T> __global__ void declared(const T &f);
      __global__ void sizes(float x[6 & 4], int m = Box<int, 2>::v & 3) { x[0] = m; }
      __global__ void values(float *x, int (*f)(int &, int &&) = nullptr, int a = (6 & 3)) { x[0] = a; }
    ]]
    assert.are.same({ "sizes", "values" }, mod:kernels())
  end)

  it("list what a module has where a name is not among it", function()
    local source = [[__device__ int counter; __constant__ float weights[4];
      extern "C" __global__ void kernels(int *x) { x[0] = counter; }]]
    local mod = dev:compile(source, { name = "a.cu" })
    support.raises("InvalidArgument", "a.cu has no variable 'count'; it has 'counter', 'weights'",
      mod.global, mod, "count")
    local err = support.raises("InvalidArgument", "a.cu has no kernel 'kern'; it has 'kernels'",
      function() return mod.kern end)
    assert.is_nil(err.message:find("template", 1, true), err.message)
  end)

  it("name a device by its label, too", function()
    local scorer <close> = support.open { label = "scorer" }
    assert.equal(dev.name, scorer.name)
    local there <close> = scorer:buffer("f32", 8)
    support.raises("InvalidArgument", { "another opening of ", scorer.name .. " 'scorer'" }, there.copy, there, x)
    if support.is_isolated() then
      scorer:inject { lost = 1 }
      support.raises("DeviceLost", "device " .. scorer.name .. " 'scorer' is lost", function() there:fill(1):read() end)
    end
  end)

  it("come before a pool has recorded any of several buffers", function()
    local pool <close> = dev:pool()
    support.raises("InvalidArgument", "argument 2 of record", pool.record, pool, x, 1)
    assert.truthy(tostring(pool):find "%(0 buffers")
    local other = support.open()
    local y <close> = other:buffer("f32", 8)
    support.raises("InvalidArgument", {}, pool.record, pool, x, y)
    assert.truthy(tostring(pool):find "%(0 buffers")
    pool:record(x, x)
    assert.truthy(tostring(pool):find "%(1 buffers")
    local z <close> = dev:buffer("f32", 8)
    support.raises("PoolSealed", "allocation", function() pool:seal():record(x, z) end)
    other:close()
  end)

  it("refuse a zero byte where a string would end there", function()
    local mod = dev:compile [[extern "C" __global__ void k(int *x) { x[0] = 1; }]]
    local kept <close> = dev:buffer("f32", 8, { label = "a" })
    local graph <close> = dev:capture(function() kept:fill(1) end)
    for what, f in pairs {
      ["argument 1 of device"] = function() gpu.device "cpu\0x" end,
      ["isolate of device"] = function() gpu.device("cpu", { isolate = "none\0x" }) end,
      ["label of buffer"] = function() dev:buffer("f32", 8, { label = "a\0b" }) end,
      ["label of host"] = function() dev:host("f32", 8, { label = "a\0b" }) end,
      ["label of stream"] = function() dev:stream { label = "\0" } end,
      ["label of capture"] = function() dev:capture({ label = "a\0" }, print) end,
      ["label of launch"] = function() mod.k:launch({ grid = 1, label = "a\0b" }, x) end,
      ["argument 1 of buffer"] = function() dev:buffer("f32\0x", 8) end,
      ["argument 1 of kernel"] = function() mod:kernel "k\0x" end,
      ["argument 2 of kernel"] = function() mod:kernel("k", "out i32*\0, i32") end,
      ["name of kernel"] = function() return mod["k\0x"] end,
      ["argument 1 of global"] = function() mod:global "g\0x" end,
      ["name of compile"] = function() dev:compile("__device__ int i;", { name = "a\0b" }) end,
      ["a name of bind"] = function() graph:bind { ["a\0b"] = kept } end,
      ["from of memory"] = function() dev:memory { from = "slab\0" } end,
      ["oom of memory"] = function() dev:memory { oom = "free\0" } end,
      ["durable of buffer"] = function() dev:buffer("f32", 8, { durable = "space\0x" }) end,
    } do
      support.raises("InvalidArgument", what .. ": a zero byte in it", f)
    end
  end)

  it("say that grid and block go by name to who gives a list", function()
    for _, config in ipairs { { 4, 4 }, { 4, block = 2 }, { { 4, 4 }, { 8 } } } do
      local err = support.raises("InvalidArgument", "grid and block go by name, got a list", kernel.launch, kernel,
        config, 8, 1, x, x)
      assert.equal("{ grid = ..., block = ... }, or a number of threads", err.hint)
    end
  end)

  it("say that data is flat to who gives rows", function()
    for _, t in ipairs { "f32", "f64", "i32", "f16" } do
      local err = support.raises("InvalidData", "element 1 (table) is not a number", dev.upload, dev, t,
        { { 1, 2 }, { 3, 4 } })
      assert.truthy(err.hint:find("flat, row by row, with the shape beside it", 1, true), err.hint)
    end
    local shaped = support.raises("InvalidArgument", "a table of 2 elements, where the shape has 4", dev.upload, dev,
      "f32", { 2, 2 }, { { 1, 2 }, { 3, 4 } })
    assert.truthy(shaped.hint:find("flat, row by row", 1, true), shaped.hint)
    for kind, given in pairs { f32 = { 1, 2 }, c64 = { { 1, 2 }, { 3, 4 } } } do
      shaped = support.raises("InvalidArgument", "where the shape has 4", dev.upload, dev, kind, { 2, 2 }, given)
      assert.falsy(shaped.hint:find("flat", 1, true), shaped.hint)
    end
    local err = support.raises("InvalidData", "element 2 (string)", dev.upload, dev, "f32", { 1, "2" })
    assert.falsy(err.hint:find("flat", 1, true), err.hint)
  end)

  it("say how parts of complex numbers are seen where those are not taken", function()
    for t, part in pairs { c64 = "f32", c128 = "f64" } do
      local z <close> = dev:upload(t, { { 1, 2 }, { 3, 4 } })
      local function hint_of(code, name, f, ...)
        local err = support.raises(code, t, f, ...)
        local parts = ('%s:view("%s", { #%s, 2 })'):format(name, part, name)
        assert.truthy(err.hint:find(parts .. " sees the parts as pairs of numbers", 1, true), err.hint)
        assert.are.same({ 1, 2, 3, 4 }, load("local " .. name .. " = ... return " .. parts)(z):read(1, 4))
      end
      hint_of("Unsupported", "z", gpu.map, "2 * z", { z = z })
      hint_of("Unsupported", "out", gpu.map, "1", { out = z })
      hint_of("Unsupported", "x", gpu.reduce, "prod", z)
      hint_of("InvalidArgument", "x", gpu.reduce, "max", z)
      hint_of("InvalidArgument", "x", gpu.reduce, "argmin", z)
    end
  end)

  it("say whose kernel is not compiled yet in a capture, and what to do", function()
    local y <close> = dev:buffer("u16", 8):fill(3)
    local most <close> = dev:scalar("u16", 0)
    local function both()
      gpu.map("3 * y + 7", { y = y, out = y })
      gpu.reduce("max", y, { out = most })
    end
    local capture <close> = dev:capture()
    for what, f in pairs {
      map = function() gpu.map("3 * y + 7", { y = y, out = y }) end,
      reduce = function() gpu.reduce("max", y, { out = most }) end,
    } do
      local err = support.raises("CaptureActive", what .. "'s kernel for this is not compiled yet", f)
      assert.equal(("call gpu.%s once before the capture"):format(what), err.hint)
    end
    capture:close()
    both()
    dev:capture(both):close()
  end)

  it("give the signature of a kernel to who counts wrong", function()
    support.raises("InvalidArgument", { "takes 4 arguments, got 0", "n: i32, a: f32, x: in f32*, y: inout f32*" },
      kernel.launch, kernel, 8)
    support.raises("InvalidArgument", "the number of threads expected, or a table with the grid", kernel.launch, kernel)
  end)

  it("of arguments that a buffer's methods do not have: nothing is done, and they say what does it", function()
    for _, b in ipairs { dev:upload("f32", { 1, 2, 3, 4 }), dev:host("f32", 4):write { 1, 2, 3, 4 } } do
      local from <close> = dev:buffer("f32", 4):fill(9)
      for name, case in pairs {
        fill = { 1, ":slice(i, j):fill", 0, 2, 3 }, copy = { 1, "slice(k, l)", from, 1 },
        write = { 2, "write(data, i)", { 7 }, 1, 2 },
        read = { 2, "the last", 1, 2, 3 }, bytes = { 2, "the last", 1, 2, "x" }, slice = { 2, "the last", 1, 2, 3 },
        view = { 2, "{rows, columns}", "f32", 2, 2 },
      } do
        if b[name] then -- host buffers have no views
          local wanted = ("argument %d of %s: it takes %d, got "):format(case[1] + 1, name, case[1])
          local err = support.raises("InvalidArgument", wanted, b[name], b, table.unpack(case, 3))
          assert.truthy(err.hint:find(case[2], 1, true), err.hint)
        end
      end
      assert.are.same({ 1, 2, 3, 4 }, b:read(nil, nil, nil))
      local err = support.raises("InvalidArgument", "argument 2 of fill: it takes 1, got table", b.fill, b, 0,
        { stream = stream })
      assert.truthy(err.hint:find("stream:use", 1, true), err.hint)
      assert.are.same({ 5, 5, 5, 5 }, b:fill(5, nil, nil):read())
      assert.are.same({ 9, 9, 9, 9 }, b:copy(from, op):read()) -- what a library's call returns has its op behind it
      b:close()
    end
  end)

  it("say what to do instead of indexing memory of the device", function()
    local err = support.raises("InvalidArgument", "not indexed", function() return x[1] end)
    assert.truthy(err.hint:find("buffer:read", 1, true), err.hint)
    err = support.raises("InvalidArgument", "not indexed", function() x[1] = 5 end)
    assert.truthy(err.hint:find("buffer:write", 1, true), err.hint)
    support.raises("InvalidArgument", "cannot be set: label", function() x.label = "new" end)
  end)

  it("of waits with a time name what was not over, its line and the seconds", function()
    support.wants_time(pending)
    local spin = dev:compile(support.spin_source).spin
    local y <close> = dev:buffer("i32", 1, { label = "slow data" })
    local function check_within(seconds, seen)
      local ticks = support.ticks(seconds)
      local line = debug.getinfo(1, "l").currentline + 1
      local launched = spin:launch({ grid = 1, block = 1, label = "slow one" }, ticks, y, 1)
      for what, wanted in pairs {
        [launched] = "'slow one' was not over after 0.02 s", [y] = "what uses 'slow data' was not over after 0.02 s",
      } do
        local err = support.raises("Timeout", wanted, what.await, what, 0.02)
        assert.are.same({ "slow one", line }, { err.op.label, err.op.line })
        assert.truthy(tostring(err):find(("asked for at spec/messages_spec.lua:%d"):format(line), 1, true))
        local ok, joined = what:join(0.02)
        assert.is_false(ok)
        assert.truthy(joined.message:find(wanted, 1, true), joined.message)
      end
      seen()
      launched:await()
    end
    local function check()
      support.under_way(0.3, check_within)
    end
    check()
    gpu.run(check)
    local line = debug.getinfo(1, "l").currentline + 1
    local slow = gpu.spawn(function()
      gpu.sleep(0.1)
    end)
    support.raises("Timeout", ("the task from spec/messages_spec.lua:%d was not over after 0.01 s; it is at "
      .. "spec/messages_spec.lua:%d"):format(line, line + 1), slow.await, slow, 0.01)
    slow:await()
  end)

  it("of gpu.timeout have its line, and where the function is and was", function()
    local function slow()
      gpu.sleep(60)
    end
    local line = debug.getinfo(slow, "S").linedefined
    local err = support.raises("Timeout", { ("messages_spec.lua:%d was not over after 0.005 s"):format(line),
      ("; it was at spec/messages_spec.lua:%d"):format(line + 1) }, function()
      gpu.timeout(0.005, slow)
    end)
    assert.truthy(err.source:find("messages_spec.lua", 1, true))
    assert.equal(line + 6, err.line)
    assert.is_nil(err.traceback:find "'raise'")
    support.raises("Timeout", "gpulua.sleep was not over after 0.005 s", gpu.timeout, 0.005, gpu.sleep, 60)
    local output = support.script [[
      local gpu = require "gpulua"
      package.loaded[true], package.loaded[1] = { sleep = gpu.sleep }, { [2] = gpu.sleep }
      package = nil
      print(select(2, pcall(gpu.timeout, 0.005, gpu.sleep, 60)).message)
    ]]
    assert.truthy(output:find("gpulua.sleep was not over after 0.005 s", 1, true), output)
  end)

  it("have a compiler's log once, and no line about the request", function()
    local err = support.raises("CompileFailed", "does not compile", dev.compile, dev,
      'extern "C" __global__ void f(int *x) { not_there = 1; }')
    local text = tostring(err)
    assert.equal(1, select(2, text:gsub("CompileFailed:", "")))
    assert.equal(select(2, err.log:gsub("not_there", "")), select(2, text:gsub("not_there", "")))
    assert.is_nil(text:find("\n  op: ", 1, true))
  end)

  it("of a device that is not there say what there is", function()
    for _, name in ipairs { "cuda:63", "cpu:1" } do
      local ok, err = pcall(gpu.device, name)
      assert.is_false(ok)
      assert.truthy(#err.message > 10)
      assert.is_nil(tostring(err):find("\n  op: ", 1, true))
      if err.code == "NoDevice" or err.code == "LibraryUnavailable" then
        assert.truthy(err.hint:find("--info", 1, true), err.hint)
        assert.truthy(err.hint:find('gpu.device("cpu")', 1, true), err.hint)
      end
    end
  end)
end)
