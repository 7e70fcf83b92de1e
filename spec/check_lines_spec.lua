-- Check mode of the CPU device says at which line of a kernel's source an access is. Lines are marked in the sources
-- by comments: "//@here".

local gpu = require "gpulua"
local lfs = require "lfs"
local support = require "spec.support"

local one = support.one
local it = support.has_libdw() and it or function(name)
  it(name, function() pending "libdw is not there" end)
end

--- The line of a mark, from 1.
local function marked(source, mark)
  local at = assert(source:find("//@" .. mark .. "\n", 1, true), mark)
  return select(2, source:sub(1, at):gsub("\n", "")) + 1
end

local source = [[
#define STORE(x, i, v) \
  do {                 \
    (x)[i] = (v);      \
  } while (0)
template <class T> __device__ void put(T *x, int i, T v) {
  x[i] = v; //@put
}
struct pair {
  int *x;
  __device__ int get(int i) const {
    return x[i]; //@get
  }
};
__device__ __noinline__ void far(int *x, int i) {
  put(x, i, 1); //@far
}
__device__ __noinline__ int farther(int *x, int i) {
  far(x, i);
  return x[0] + 1;
}
struct three { float x, y, z; };

extern "C" __global__ void plain(int *x, int at) {
  int i = threadIdx.x;
  if (i == at)
    x[1000] = //@plain
      i;
}
extern "C" __global__ void reads(const int *x, int at, int *y) {
  y[0] =
    x[at]; //@reads
}
extern "C" __global__ void breaks(const int *x) {
  int i = threadIdx.x;
  ((int *)x)[i] = 1; //@breaks
}
extern "C" __global__ void misses(const char *x, int *y) {
  y[0] = *(const int *)(x + 1); //@misses
}
extern "C" __global__ void inlined(int *x, int i) {
  x[0] = 0;
  put(x, i, 1); //@inlined
}
extern "C" __global__ void method(int *x, int i) {
  pair p = {x};
  x[0] = p.get(i); //@method
}
extern "C" __global__ void called(int *x, int i) {
  x[0] = 0;
  x[0] = farther(x, i) + 1; //@called
}
extern "C" __global__ void lambda(int *x, int i) {
  auto f = [&](int k) {
    x[k] = 1; //@body
  };
  f(i); //@lambda
}
extern "C" __global__ void macro(int *x, int i) {
  x[0] = 0;
  STORE(x, i, 1); //@macro
}
extern "C" __global__ void adds(int *x, int i) {
  x[0] = 0;
  atomicAdd(&x[i], 1); //@adds
}
extern "C" __global__ void largest(float *x, int i) {
  x[0] = 0;
  atomicMax((int *)&x[i], 1); //@largest
}
extern "C" __global__ void loads(const int *x, int i, int *y) {
  y[0] = __ldg(&x[i]); //@loads
}
extern "C" __global__ void copies(const char *x, char *y, int n) {
  y[0] = 0;
  memcpy(y, x, n); //@copies
}
extern "C" __global__ void sets(char *y, int n) {
  y[0] = 0;
  memset(y, 0, n); //@sets
}
extern "C" __global__ void whole(const three *x, three *y, int at) {
  y[0] = x[at]; //@whole
}
extern "C" __global__ void null(int *x) {
  int *y = x;
  y[0] = 1; //@null
}
#line 700 "other.cu"
extern "C" __global__ void renamed(int *x, int i) {
  x[i] = 1;
}
]]

local racing = [[
__device__ int kept;
__device__ int load(const int *x) {
  return *x; //@load
}
extern "C" __global__ void threads(int *x, int *y) {
  if (threadIdx.x == 0)
    x[0] = 1; //@first
  else
    y[0] = x[0]; //@second
}
extern "C" __global__ void branches(int *x) {
  if (threadIdx.x == 0)
    x[0] = 1; //@then
  else
    x[0] = 2; //@else
}
extern "C" __global__ void blocks(int *x, int *y) {
  if (blockIdx.x == 0)
    x[0] = 1; //@writes
  else
    y[0] = load(x); //@reads
}
extern "C" __global__ void shifts(int *x, int *y) {
  int v = x[1]; //@shifts
  y[blockIdx.x] = v;
  if (blockIdx.x == 1)
    x[1] = v + 1; //@shifted
}
extern "C" __global__ void statics(int *y) {
  __shared__ int s[64];
  int t = threadIdx.x;
  s[t] = 1; //@stores
  __syncthreads();
  s[t] = 2; //@stores again
  y[t] = s[t ^ 32]; //@takes
}
extern "C" __global__ void dynamics(int *y) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x; //@puts
  __syncthreads();
  int v = s[63 - threadIdx.x]; //@gets
  s[threadIdx.x] = v; //@puts again
  y[threadIdx.x] = v;
}
extern "C" __global__ void early(int *y) {
  __shared__ int s[64];
  __syncthreads();
  y[0] = s[threadIdx.x]; //@early
}
extern "C" __global__ void variable(int *y) {
  kept = threadIdx.x; //@kept
}
extern "C" __global__ void peek(int *x, int *y) {
  atomicAdd(x, 1); //@atomic
  y[threadIdx.x] = x[0]; //@peek
  y[threadIdx.x] += 1;
}
extern "C" __global__ void several(int *y) {
  __shared__ int s[64];
  int t = threadIdx.x;
  if (t == 32) s[0] = 0;
  __syncthreads();
  int v = 0;
  if (t == 33) v = s[0] + 1; //@one
  if (t == 34) v = s[0] * 7; //@two
  if (t == 0) s[0] = 1; //@over
  y[t] = v;
}
]]

do -- where the suite's devices are: each transport runs this for itself
  describe("check mode", function()
    local dev, mod, races

    setup(function()
      dev = gpu.device("cpu", { check = true, seed = 7 })
      mod = dev:compile(source, { name = "lines.cu" })
      races = dev:compile(racing, { name = "races.cu" })
    end)
    teardown(function()
      dev:close()
    end)

    local function row(n)
      return dev:upload("i32", n, function(i) return i end)
    end

    --- The launch fails with the code, and at the line marked, called at the other one if there is one.
    local function fails(code, marks, k, config, ...)
      local inner, outer = marks:match "^(.-) < (.*)$"
      local where = ("at lines.cu:%d, "):format(marked(source, inner or marks))
      if outer then
        where = where .. ("called at lines.cu:%d, "):format(marked(source, outer))
      end
      return (support.finds("check_lines_spec.lua", code, where .. "block (0,0,0)", k:launch(config, ...)))
    end

    describe("says the line", function()
      it("of an access out of bounds, in the middle of a statement too", function()
        fails("OutOfBounds", "plain", mod.plain, 64, row(64), 33)
        fails("OutOfBounds", "reads", mod.reads, one, row(4), 4, row(1))
        fails("OutOfBounds", "null", mod.null, one, nil)
      end)

      it("of a write that is not declared", function()
        fails("UndeclaredAccess", "breaks", mod.breaks, 4, row(4))
      end)

      it("of a misaligned access", function()
        fails("InvalidArgument", "misses", mod.misses, one, dev:buffer("i8", 8):fill(0), row(1))
      end)

      it("of a read of what was never written", function()
        fails("InvalidData", "reads", mod.reads, one, dev:buffer("i32", 4), 2, row(1))
        fails("InvalidData", "reads", mod:kernel("reads", "x: out i32*, i32, y: out i32*"), one, row(4), 2, row(1))
      end)

      it("of an inlined function, a template's, a method's, a lambda's, and the kernel's", function()
        fails("OutOfBounds", "put < inlined", mod.inlined, one, row(4), 4)
        fails("OutOfBounds", "get < method", mod.method, one, row(4), 4)
        fails("OutOfBounds", "body < lambda", mod.lambda, one, row(4), 4)
      end)

      it("of a function that is called, and the kernel's", function()
        fails("OutOfBounds", "put < called", mod.called, one, row(4), 4)
      end)

      it("at which a macro is used", function()
        fails("OutOfBounds", "macro", mod.macro, one, row(4), 4)
      end)

      it("at which a function of CUDA's is called, not one of its own", function()
        fails("OutOfBounds", "adds", mod.adds, one, row(4), 4)
        fails("OutOfBounds", "largest", mod.largest, one, dev:buffer("f32", 4):fill(0), 4)
        fails("OutOfBounds", "loads", mod.loads, one, row(4), 4, row(1))
      end)

      it("of a copy of memory and of a struct", function()
        local function bytes(n) return dev:buffer("i8", n):fill(0) end
        fails("OutOfBounds", "copies", mod.copies, one, bytes(8), bytes(4), 8)
        fails("OutOfBounds", "copies", mod.copies, one, bytes(4), bytes(8), 8)
        fails("OutOfBounds", "sets", mod.sets, one, bytes(8), 9)
        fails("OutOfBounds", "whole", mod:kernel("whole", "x: in void*, y: out void*, i32"), one,
          dev:buffer("f32", 9):fill(1), dev:buffer("f32", 3), 3)
      end)

      it("as #line has it", function()
        support.finds("check_lines_spec.lua", "OutOfBounds", "at other.cu:701, block",
          mod.renamed:launch(one, row(4), 4))
      end)

      it("behind the script's own, where the source has no name", function()
        local output = support.script([==[
          local gpu = require "gpulua"
          local dev = gpu.device("cpu", { check = true })
          local own = dev:compile [[
            extern "C" __global__ void own(int *x) {
              x[4] = 1;
            }]]
          local x = dev:buffer("i32", 4):fill(0)
          print(select(2, pcall(function() own.own:launch({ grid = 1, block = 1 }, x):await() end)))
        ]==])
        assert.truthy(output:find(":3:2, block", 1, true), output)
      end)

      it("in graphs", function()
        local x <close> = row(4)
        local step <close> = dev:capture(function()
          mod.inlined:launch(one, x, 4)
        end)
        local op = step:launch()
        support.raises("OutOfBounds", ("at lines.cu:%d, called at lines.cu:%d, block"):format(
          marked(source, "put"), marked(source, "inlined")), op.await, op)
      end)

      it("when the module comes from the cache", function()
        local again = dev:compile(source, { name = "lines.cu" })
        fails("OutOfBounds", "put < called", again.called, one, row(4), 4)
      end)

      it("of what a header has, by the name that the compiler has for it", function()
        local folder = os.tmpname()
        os.remove(folder)
        assert(lfs.mkdir(folder))
        finally(function()
          os.remove(folder .. "/parts/far.h")
          os.remove(folder .. "/parts")
          os.remove(folder)
        end)
        assert(lfs.mkdir(folder .. "/parts"))
        local file <close> = assert(io.open(folder .. "/parts/far.h", "w"))
        file:write "\n__device__ inline void far(int *x, int i) {\n  x[i] = 1;\n}\n"
        file:close()
        local user = dev:compile("#include <parts/far.h>\n\n" ..
          'extern "C" __global__ void uses(int *x, int i) {\n  far(x, i);\n}\n',
          { name = "a b/user.cu", include = folder })
        support.finds("check_lines_spec.lua", "OutOfBounds",
          { "/parts/far.h:3, called at a b/user.cu:4, block" }, user.uses:launch(one, row(4), 4))
      end)
    end)

    describe("says the lines of both accesses of a race", function()
      --- Whichever comes first: marks of `one` and of `two` in any order.
      local function both(mark, other, k, config, ...)
        local err = support.finds("check_lines_spec.lua", "RaceFound", "in a race with", k:launch(config, ...))
        local before = err.message:match ", which %a+ it at (.-): no"
        local now = err.message:match "launch, at (.-), block" or err.message:match "between, at (.-), block"
        local function at(name)
          local inner, outer = name:match "^(.-) < (.*)$"
          return ("races.cu:%d"):format(marked(racing, inner or name)) ..
            (outer and (", called at races.cu:%d"):format(marked(racing, outer)) or "")
        end
        local expected = { at(mark), at(other) }
        assert.truthy(before == expected[1] and now == expected[2] or before == expected[2] and now == expected[1],
          err.message)
        return err
      end

      it("between threads and between blocks", function()
        both("first", "second", races.threads, 2, row(1), row(1))
        for _ = 1, 4 do -- in several orders
          both("writes", "load < reads", races.blocks, { grid = 2, block = 1 }, row(1), row(1))
          both("shifts", "shifted", races.shifts, { grid = 2, block = 1 }, row(2), row(2))
        end
      end)

      it("in shared memory, static and dynamic", function()
        both("stores again", "takes", races.statics, { grid = 1, block = 64 }, row(64))
        both("gets", "puts again", races.dynamics, { grid = 1, block = 64, shared = 256 }, row(64))
      end)

      it("of a variable of the module", function()
        both("kept", "kept", races.variable, 2, row(1))
      end)

      it("that is certain later only", function()
        both("atomic", "peek", races.peek, 2, dev:buffer("i32", 1):fill(0), row(2))
      end)

      -- A compiler may make one access of them: then it is to say that it is of no line.
      it("but none that would be a guess: of branches that do the same", function()
        local err = support.finds("check_lines_spec.lua", "RaceFound", "in a race with",
          races.branches:launch(2, row(1)))
        local lines = {}
        for number in err.message:gmatch "races.cu:(%d+)" do
          lines[#lines + 1] = tonumber(number)
        end
        table.sort(lines)
        assert.truthy(#lines == 0 or lines[1] == marked(racing, "then") and lines[2] == marked(racing, "else"),
          err.message)
      end)

      it("but none that would be a guess: of several reads", function()
        for seed = 1, 6 do
          local own <close> = gpu.device("cpu", { check = true, seed = seed })
          local k = own:compile(racing, { name = "races.cu" }).several
          local err = support.finds("check_lines_spec.lua", "RaceFound", "in a race with",
            k:launch({ grid = 1, block = 64 }, own:buffer("i32", 64)))
          local reader = err.message:match "thread %((%d+),0,0%), which read it" or err.message:match "%((%d+),0,0%)$"
          local before = err.message:match "which read it at races.cu:(%d+)"
          if before then
            assert.equal(marked(racing, reader == "33" and "one" or "two"), tonumber(before), err.message)
          end
        end
      end)
    end)

    it("says the line where a thread of a block with barriers has little of its stack left", function()
      local own = dev:compile([[
        extern "C" __global__ void deep(int *y, int i) {
          volatile char taken[150000];
          taken[i] = 1;
          __syncthreads();
          y[i] = taken[i];
        }]], { name = "deep.cu" }) -- whose lines nobody has asked for
      support.finds("check_lines_spec.lua", "OutOfBounds", "at deep.cu:5, block",
        own.deep:launch({ grid = 1, block = 1 }, row(4), 4))
    end)

    it("says the line of a read of shared memory that its block has not written", function()
      support.finds("check_lines_spec.lua", "InvalidData", ("never set?, at races.cu:%d, block"):format(
        marked(racing, "early")), races.early:launch({ grid = 1, block = 64 }, row(1)))
    end)
  end)
end

describe("check mode", function()
  -- From version 15 on, clang has names of its own for the functions that copy and set memory.
  it("says lines with every compiler that is here", function()
    local count = 0
    for _, compiler in ipairs { "g++", "clang++", "clang++-14", "clang++-15", "clang++-16", "clang++-19" } do
      if os.execute("command -v " .. compiler .. " >/dev/null") then
        count = count + 1
        local output, code = support.script([==[
          local gpu = require "gpulua"
          local dev = gpu.device("cpu", { check = true, seed = 1 })
          local mod = dev:compile([[
            __device__ void put(char *x, const char *y, int n) {
              memcpy(x, y, n);
            }
            extern "C" __global__ void k(char *x, const char *y, int n) {
              memset(x, 0, 4);
              put(x, y, n);
            }]], { name = "k.cu" })
          local x, y = dev:buffer("i8", 8), dev:buffer("i8", 9):fill(0)
          local op = mod.k:launch({ grid = 1, block = 1 }, x, y, 9)
          print(select(2, pcall(op.await, op)).message)]==], "GPULUA_CXX=" .. compiler)
        assert.equal(0, code, output)
        assert.truthy(output:find("across the end .* at k.cu:2, called at k.cu:6, block"), compiler .. ": " .. output)
      end
    end
    assert.truthy(count > 0)
  end)

  it("looks at large frames with every compiler that is here", function()
    local script = ([==[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { check = true, seed = 1 })
      local x, out = dev:upload("i32", 64, function(i) return i end), dev:buffer("i32", 64)
      local function try(kernel, fine, more, ...)
        local deep, args = dev:buffer("i32", 64), { ... }
        table.move({ deep, out }, 1, 2, #args + 1, args)
        deep:fill(fine)
        kernel:launch({ grid = 1, block = 64 }, table.unpack(args))
        local alone = out:read()[40]
        deep:fill(more)
        local op = kernel:launch({ grid = 1, block = 64 }, table.unpack(args))
        print(alone, select(2, pcall(op.await, op)).message)
        out = dev:buffer("i32", 64)
      end
      try(dev:compile([[%s]]).frames, 0, 1, x)
      try(dev:compile([[%s]]).levels, 300, 1300)]==]):format(support.read_file "spec/cpu/stack.cu",
      support.read_file "spec/cpu/deep.cu")
    for _, compiler in ipairs { "g++", "clang++", "clang++-14", "clang++-15", "clang++-16", "clang++-19" } do
      if os.execute("command -v " .. compiler .. " >/dev/null") then
        local output, code = support.script(script, "GPULUA_CXX=" .. compiler)
        assert.equal(0, code, output)
        for _, line in ipairs { "1039%s+kernel 'frames'", "300%s+kernel 'levels'" } do
          assert.truthy(output:find(line .. ": its local memory is larger than the CPU device's 256 KB per thread"),
            compiler .. ": " .. output)
        end
      end
    end
  end)

  it("finds the same without libdw, and says no lines", function()
    local output, code = support.script([==[
      local gpu = require "gpulua"
      local dev = gpu.device("cpu", { check = true, seed = 1 })
      local k = dev:compile([[
        extern "C" __global__ void k(int *x) {
          x[threadIdx.x + 4] = 1;
        }]], { name = "k.cu" }).k
      local op = k:launch({ grid = 1, block = 1 }, dev:buffer("i32", 4):fill(0))
      print(select(2, pcall(op.await, op)).message)]==], "GPULUA_LIBDW=/nowhere/libdw.so")
    assert.equal(0, code, output)
    assert.truthy(output:find("argument 1 ('x'), block (0,0,0), thread (0,0,0)", 1, true), output)
  end)
end)
