-- Compiling and loading: options, the cache, what runs beside it, and what is refused.

local gpu = require "gpulua"
local support = require "spec.support"

describe("compile", function()
  local dev, folder

  setup(function()
    dev = support.open()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
  end)
  teardown(function()
    os.execute("rm -r " .. folder)
    support.close_all()
  end)

  local function write(name, text)
    local file = assert(io.open(folder .. "/" .. name, "wb"))
    file:write(text)
    file:close()
    return folder .. "/" .. name
  end

  --- What the kernel `value` of a module puts into an int.
  local function value_of(source, options)
    local mod <close> = dev:compile(source, options)
    local x <close> = dev:buffer("i32", 1):fill(-1)
    mod.value:launch(support.one, x)
    return x:read()[1]
  end

  local mark = support.fresh()

  it("takes variables of types that scripts have none for", function()
    local source = [[
      static __device__ const char *text = "a";
      struct pair { unsigned long a; const void *b; };
      __device__ pair two[3];
      extern "C" __global__ void value(int *x) { two[1].a = 5; x[0] = text[0]; }]]
    assert.equal(97, value_of(source))
  end)

  -- Its code goes away with it.
  it("is unloaded behind its newest launch, be it closed before, with variables or without", function()
    support.wants_time(pending)
    local ticks = support.ticks(0.05)
    collectgarbage()
    for _, variables in ipairs { "", "__device__ int variable;" } do
      dev:synchronize()
      local before = dev:stats().modules_live
      local x <close> = dev:buffer("i32", 1):fill(0)
      local mod = dev:compile(variables .. support.spin_source)
      for _ = 1, 3 do
        mod.spin:launch(support.one, ticks, x, 7)
      end
      local op = mod.spin:launch(support.one, ticks, x, 8)
      mod:close()
      mod = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      for _ = 1, 3 do
        local y <close> = dev:buffer("i32", 1) -- what is put off is looked at
        y:fill(0)
        local live, is_over = dev:stats().modules_live, op:done()
        assert.truthy(is_over or live > before, "its code is gone before it has run")
        gpu.sleep(0.01)
      end
      op:await()
      assert.equal(8, x:read()[1])
      assert.truthy(support.eventually(5, function()
        dev:synchronize()
        return dev:stats().modules_live <= before
      end))
    end
  end)

  it("runs beside other work: tasks go on, and so does the device", function()
    local x <close> = dev:buffer("i32", 1)
    local touch = dev:compile([[ extern "C" __global__ void touch(int *x) { x[0]++; } ]]).touch
    x:fill(0)
    local launches, is_over = 0, false
    local other = gpu.spawn(function()
      while not is_over do
        touch:launch(support.one, x):await()
        launches = launches + 1
      end
    end)
    gpu.sleep(0)
    local mod = dev:compile(("extern \"C\" __global__ void beside(int *x) { x[0] = %d; }"):format(mark))
    local meanwhile = launches
    is_over = true
    other:await()
    assert.equal("beside", mod:kernels()[1])
    assert.truthy(meanwhile >= 3, meanwhile) -- a device that others use has its turns far apart
    assert.are.same({ launches }, x:read())
  end)

  it("takes defines with numbers, strings and booleans", function()
    local source = [[
      #ifdef OFF
      #error "OFF is not defined"
      #endif
      extern "C" __global__ void value(int *x) { x[0] = A + B + ON; }
    ]]
    assert.equal(42, value_of(source, { defines = { A = 1, B = "(4 * 10)", ON = true, OFF = false } }))
    assert.equal(52, value_of(source, { defines = { A = 1, B = "(5 * 10)", ON = true } }))
    assert.equal(9, value_of('extern "C" __global__ void value(int *x) { x[0] = F(2, 7); }',
      { defines = { ["F(x, y)"] = "x + y" } }))
    assert.equal(6, value_of([[
      template <typename E> __device__ E second(E a, E b) { return b; }
      extern "C" __global__ void value(int *x) { T six = second(FIVE_SIX); x[0] = six; }
    ]], { defines = { T = "int", FIVE_SIX = "5, 6" }, flags = { "-DE=F" } }))
    for _, defines in ipairs { 5, { 1 }, { A = {} }, { A = "1\n2" }, { ["A\nflag -O0"] = "1" }, { ["A\0"] = 1 },
      { ["A B"] = 1 }, { ["1A"] = 1 }, { [""] = 1 }, { ["A(x"] = 1 }, { ["A(x) y"] = 1 }, { A = "1 \\" } } do
      support.raises("InvalidArgument", "defines", dev.compile, dev, source, { defines = defines })
    end
  end)

  it("takes one name, folder or flag without a table around it", function()
    write("three.h", "#define THREE 3\n")
    local source = [[
      #include "three.h"
      extern "C" __global__ void value(int *x) { x[0] = THREE; }
    ]]
    assert.equal(3, value_of(source, { include = folder, flags = {} }))
    assert.equal(3, value_of(source, { flags = "--include-path=" .. folder }))
    assert.equal(3, value_of(source, { flags = { "-I" .. folder, "--std=c++14", "--diag-suppress=177", "--minimal" } }))
    assert.equal(8, value_of('extern "C" __global__ void value(int *x) { x[0] = THREE + FIVE; }',
      { flags = { "--pre-include=" .. folder .. "/three.h", "--define-macro=FIVE=5" } }))
    local standard <const> = 'extern "C" __global__ void value(int *x) { x[0] = __cplusplus / 100; }'
    for _, case in ipairs { { 2017, "-std=c++17" }, { 2017, "--std=c++17" }, { 2020, "-std=c++20" },
      { 2017, "-std=c++20", "-std=c++17" }, { 2020, "-std=c++17", "-std=c++20" } } do
      assert.equal(case[1], value_of(standard, { flags = { table.unpack(case, 2) } }))
    end
    for option, wrong in pairs { names = 5, include = { 5 }, flags = { "a\nb" } } do
      support.raises("InvalidArgument", option, dev.compile, dev, source, { [option] = wrong })
    end
    for wrong, said in pairs { ["FIVE=5"] = "'FIVE=5' is no flag", ["-I"] = "'-I' is no flag", [""] = "'' is no flag",
      ["-O3 -DFIVE=5"] = "more than one" } do
      support.raises("InvalidArgument", { "flags of compile", said }, dev.compile, dev, source, { flags = { wrong } })
    end
    assert.equal(3, value_of('extern "C" __global__ void value(int *x) { x[0] = FIVE; }',
      { flags = { "-DFIVE=(3 -1 + 1)", "-I" .. folder .. "/a -B" } }))
    support.raises("InvalidArgument", "flagz", dev.compile, dev, source, { flagz = {} })
    support.raises("InvalidArgument", "options", dev.compile, dev, source, 5)
    support.raises("InvalidArgument", "name", dev.compile, dev, source, { name = 5 })
    support.raises("InvalidArgument", "longer than", dev.compile, dev, source, { include = { ("x"):rep(40000) } })
    support.raises("InvalidArgument", "zero byte", dev.compile, dev, source .. "\0")
  end)

  it("sees that a header, the source or the options have changed, and nothing else", function()
    local source = ([[
      #include "number.h"
      extern "C" __global__ void value(int *x) { x[0] = NUMBER + ADD; } // %d
    ]]):format(mark)
    local function value(add)
      return value_of(source, { include = { folder }, defines = { ADD = add } })
    end
    write("number.h", "#define NUMBER 10\n")
    assert.equal(11, value(1))
    assert.equal(12, value(2))
    write("number.h", "#define NUMBER 20\n")
    assert.equal(21, value(1))
    write("number.h", "#define NUMBER 10\n")
    assert.equal(11, value(1))
  end)

  -- What looks on, as tools/kernels_seen.lua, must not have the same kernels compiled under another name.
  it("is named by the script's line that has it compiled, not by a function of the library's between them", function()
    local between = load("local dev, source = ... local mod = dev:compile(source) return mod", "=gpulua/between")
    local source <const> = 'extern "C" __global__ void value(int *x) { x[0] = 1; }'
    local line = debug.getinfo(1, "l").currentline + 1
    local one, other = dev:compile(source), between(dev, source)
    local named = "gpulua.module spec/module_spec.lua:" .. line .. " on " .. dev.name
    assert.are.same({ named, named }, { tostring(one), tostring(other) })
  end)

  it("finds what is compiled in the cache, also in another process, and mends what is damaged there", function()
    local cache = folder .. "/cache"
    local script = ([[
      local dev <close> = require "gpulua".device()
      local mod = dev:compile('extern "C" __global__ void value(int *x) { x[0] = 77; } // %d', { name = "value.cu" })
      local x = dev:buffer("i32", 1)
      mod.value:launch(1, x)
      local stats = dev:stats()
      print(x:read()[1], stats.compilations, stats.cache_hits, stats.compile_ns > 1e6 or stats.compile_ns)
    ]]):format(mark)
    local function files()
      local pipe = assert(io.popen("cd " .. cache .. " && find . -type f -size +0 | sort"))
      local list = pipe:read "a"
      pipe:close()
      return list
    end
    local compiled <const>, found <const> = "77\t1\t0\ttrue\n", "77\t0\t1\t0\n"
    local function run(expected)
      assert.equal(expected, (support.script(script, "GPULUA_CACHE=" .. cache)))
      return files()
    end
    local first = run(compiled)
    assert.truthy(#first > 0)
    assert.equal(first, run(found))
    os.execute("find " .. cache .. " -type f -exec truncate -s 0 {} +")
    assert.equal("", files())
    assert.equal(first, run(compiled))
  end)

  it("has the compiler's precompiled header made anew where it is damaged", function()
    if support.is_gpu() then
      pending "the CPU device's compiler"
      return
    elseif support.isolation() ~= "process" then
      pending "once is enough: it compiles for a long time"
      return
    end
    for _, compiler in ipairs { "g++", "clang++" } do
      local cache = ("%s/cache-%s"):format(folder, compiler)
      local function precompiled()
        return (support.command(("find %s -path '*/gpulua_cuda.h.*' -type f"):format(cache)):gsub("\n$", ""))
      end
      local number = 0
      local function compile()
        number = number + 1
        local output = support.script(([[
          local dev <close> = require "gpulua".device()
          dev:compile('extern "C" __global__ void value%d(int *x) { x[0] = 1; }')
          print "compiled"]]):format(number), ("GPULUA_CXX=%s GPULUA_CACHE=%s"):format(compiler, cache))
        assert.equal("compiled\n", output)
        local file = assert(io.open(precompiled(), "rb"))
        local begin, size = file:read(4), file:seek "end"
        file:close()
        assert.equal(compiler == "g++" and "gpch" or "CPCH", begin)
        return size
      end
      if select(2, support.command("command -v " .. compiler)) == 0 then
        local size = compile()
        for what, damage in pairs {
          ["no bytes"] = "truncate -s 0 %s",
          ["half of it"] = ("truncate -s %d %%s"):format(size // 2),
          ["nothing but zeros"] = ("truncate -s 0 %%s && truncate -s %d %%s"):format(size),
          ["a hole"] = ("dd if=/dev/zero of=%%s conv=notrunc bs=4096 count=%d seek=%d status=none"):format(
            size // 16384, size // 8192),
        } do
          assert(os.execute((damage:gsub("%%s", precompiled()))))
          assert.is_true(compile() > size * 7 // 8, compiler .. ": " .. what)
        end
      end
    end
  end)

  it("has the object that check mode's modules are linked with made anew where it is damaged", function()
    if support.isolation() ~= "none" or support.is_gpu() then
      pending "once is enough, on the CPU device"
      return
    end
    for _, compiler in ipairs { "g++", "clang++" } do
      local cache = ("%s/cache-hooks-%s"):format(folder, compiler)
      local number = 0
      local function compile()
        number = number + 1
        local output = support.script(([[
          local dev <close> = require "gpulua".device("cpu", { check = true })
          local op = dev:compile('extern "C" __global__ void value(int *x) { x[%d] = 1; }').value
            :launch(1, dev:buffer("i32", 1))
          print(select(2, op:join()).code)]]):format(number), ("GPULUA_CXX=%s GPULUA_CACHE=%s"):format(compiler, cache))
        assert.equal("OutOfBounds\n", output)
        local path = support.command(("find %s -name '*.o'"):format(cache)):gsub("\n$", "")
        return path, #assert(support.read_file(path))
      end
      if select(2, support.command("command -v " .. compiler)) == 0 then
        local path, size = compile()
        assert.truthy(size > 10000, size)
        for _, bytes in ipairs { 100, size // 2, size } do
          assert(os.execute(("truncate -s %d %s"):format(bytes == size and 0 or bytes, path)))
          assert(os.execute(("truncate -s %d %s"):format(bytes, path))) -- or nothing but zeros
          assert.are.same({ path, size }, { compile() }, ("%s: %d bytes"):format(compiler, bytes))
        end
        -- A hole in its code, which no linker finds.
        assert(os.execute(("dd if=/dev/zero of=%s conv=notrunc bs=64 seek=1 count=256 status=none"):format(path)))
        assert.are.same({ path, size }, { compile() }, compiler)
      end
    end
  end)

  local two_compilations = [=[
    local dev <close> = require "gpulua".device()
    local x = dev:buffer("i32", 1)
    for value = 78, 79 do
      dev:compile(([[extern "C" __global__ void value(int *x) { x[0] = %d; }]]):format(value)).value:launch(1, x)
    end
    print(x:read()[1], dev:stats().compilations)]=]

  --- What has been left in the folder for temporary files, a line each.
  local function left_in(temporary)
    local pipe = assert(io.popen("ls -A " .. temporary))
    local names = pipe:read "a"
    pipe:close()
    return names
  end

  it("works where the cache cannot be used, says once why, and leaves nothing", function()
    local path, open = write("none", ""), folder .. "/open"
    assert(os.execute("mkdir -m 777 " .. open))
    for _, case in ipairs {
      { path .. "/below", "Not a directory" },
      { "/proc/no/such/folder", "No such file or directory" },
      { open, "it is not the user's own, or others can write to it" },
    } do
      local temporary = folder .. "/temporary"
      assert(os.execute("mkdir -p " .. temporary))
      local output, code = support.script(two_compilations,
        ("TMPDIR=%s GPULUA_CACHE=%s"):format(temporary, case[1]))
      local _, count = output:gsub(": compiled kernels are not kept: '" .. case[1] .. "': " .. case[2] .. "\n", "")
      assert.equal(1, count, output)
      assert.truthy(output:find "79\t2\n$", output)
      assert.equal(0, code)
      assert.equal("", left_in(temporary))
    end
  end)

  it("works where the cache has no room left, and says so", function()
    local path = folder .. "/full"
    assert(os.execute("mkdir " .. path))
    -- What is compiled for a GPU is small: one page has room for the first at most.
    local mount = ("unshare -rm sh -c 'mount -t tmpfs -o mode=700,size=%s tmpfs %s"):format(
      dev.kind == "cpu" and "16k" or "4k", path)
    if not os.execute(mount .. "' 2> /dev/null") then
      pending "no file system can be mounted here"
      return
    end
    local script = write("two.lua", two_compilations)
    local output, code = support.command(("%s; TMPDIR=%s GPULUA_CACHE=%s %s/gpulua %s'"):format(mount, folder, path,
      os.getenv "GPULUA_BUILD" or "build", script))
    assert.truthy(output:find(": compiled kernels are not kept: '" .. path .. "': No space left on device\n", 1, true),
      output)
    assert.truthy(output:find "79\t2\n$", output)
    assert.equal(0, code)
  end)

  it("says what a compiler says that fails for a reason of its own", function()
    if dev.kind ~= "cpu" then
      return
    end
    local compiler = write("compiler", [=[#!/bin/sh
      case " $* " in
        *" -shared "*) echo "c++: fatal error: Killed signal terminated program cc1plus" >&2; exit 1;;
      esac
      exec c++ "$@"]=])
    assert(os.execute("chmod +x " .. compiler))
    local output = support.script([=[
      local dev <close> = require "gpulua".device()
      local source = ([[extern "C" __global__ void f%d(int *x) { }]]):format(os.time())
      print(select(2, pcall(dev.compile, dev, source)))]=], "GPULUA_CXX=" .. compiler)
    assert.truthy(output:find "CompileFailed: .*\nc%+%+: fatal error: Killed signal terminated program", output)
  end)

  it("keeps what comes of a kernel in files, if it is asked to", function()
    local prefix = folder .. "/kept"
    local suffixes = dev.kind == "cpu" and { ".cpp", ".so" } or { ".ptx", ".cubin" }
    local function bytes_of(suffix)
      local file = io.open(prefix .. suffix, "rb")
      local bytes = file and file:read "a"
      if file then
        file:close()
      end
      return bytes
    end
    local source = [[
      template <typename T> __global__ void twice(T *x) { *x *= 2; }
      extern "C" __global__ void value(int *x) { x[0] = 31; }]]
    local before = dev:stats().compilations
    for round = 1, 2 do -- also of what is in the cache
      assert.equal(31, value_of(source, { names = { "twice<float>" }, keep = prefix }))
      assert.equal(before + round, dev:stats().compilations)
      local text, code = bytes_of(suffixes[1]), bytes_of(suffixes[2])
      assert.truthy(text:find("value", 1, true))
      assert.equal("\127ELF", code:sub(1, 4))
      if dev.kind == "cuda" then
        local machine_code = require "gpulua.machine_code"
        local names, entries = machine_code.names(text), machine_code.of_ptx(text)
        for _, name in ipairs { "value", "twice<float>" } do
          assert.truthy(entries[names[name]]:find(".entry " .. names[name], 1, true), name)
        end
      end
      for _, suffix in ipairs(suffixes) do
        os.remove(prefix .. suffix)
      end
    end
    assert.equal(31, value_of(source, { names = { "twice<float>" } }))
    assert.is_nil(bytes_of(suffixes[1]))
    -- A name without a folder is one in the script's.
    local beside = (os.tmpname():gsub(".*/", ""))
    value_of(source, { keep = beside })
    for _, suffix in ipairs(suffixes) do
      assert.truthy(os.remove(beside .. suffix))
    end
    os.remove("/tmp/" .. beside)
    support.raises("Io", { "keep", folder .. "/nowhere/kept" .. suffixes[1] }, dev.compile, dev, source,
      { keep = folder .. "/nowhere/kept" })
    local refused <const> = "keep of compile"
    support.raises("InvalidArgument", refused, dev.compile, dev, source, { keep = "" })
    support.raises("InvalidArgument", refused, dev.compile, dev, source, { keep = folder .. "/" })
    support.raises("InvalidArgument", refused, dev.compile, dev, source, { keep = folder .. "/a\0b" })
    support.raises("InvalidArgument", { refused, "a line break" }, dev.compile, dev, source, { keep = "a\nb" })
    support.raises("InvalidArgument", { "keep" }, dev.compile, dev, source, { keep = 5 })
  end)

  it("takes the source, and not the name of its file", function()
    support.raises("InvalidArgument", { "the source itself expected", "'some/kernels.cu'" }, dev.compile, dev,
      "some/kernels.cu")
  end)

  it("at once by many tasks, of one source and of several", function()
    local tasks = {}
    for i = 1, 12 do
      tasks[i] = gpu.spawn(function()
        local source = "extern \"C\" __global__ void value(int *x) { x[0] = %d + %d - %d; }"
        return value_of(source:format(mark, i % 4, mark))
      end)
    end
    for i, value in ipairs { gpu.all(tasks) } do
      assert.equal(i % 4, value)
    end
  end)

  describe("load", function()
    it("takes the name of a file and says what is wrong with it", function()
      support.raises("Io", "no/such/file.ptx", dev.load, dev, "no/such/file.ptx")
      support.raises("Io", folder, dev.load, dev, folder)
      support.raises("Io", "kernels.version2.cubin", dev.load, dev, "kernels.version2.cubin")
      local text = write("text.txt", "this is neither")
      support.raises("InvalidData", text, dev.load, dev, text)
      support.raises("InvalidArgument", "argument 1 of load", dev.load, dev)
      support.raises("InvalidArgument", "argument 1 of load", dev.load, dev, 5)
      support.raises("Io", {}, dev.load, dev, "zero\0byte")
      support.works(dev)
    end)

    it("of PTX in a file", function()
      local path = write("store.ptx", [[
.version 6.3
.target sm_75
.address_size 64
.visible .entry store(.param .u64 p) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, 99;
  st.global.u32 [%rd2], %r1;
  ret;
}
]])
      if dev.kind == "cpu" then
        support.raises("Unsupported", {}, dev.load, dev, path)
        return
      end
      local mod = dev:load(path)
      local x <close> = dev:buffer("u32", 1)
      mod:kernel("store", "out u32*"):launch(support.one, x)
      assert.are.same({ 99 }, x:read())
    end)
  end)
end)
