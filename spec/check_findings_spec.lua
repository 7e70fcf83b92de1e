-- What findings of check mode say, and what programs can read of them: places, null pointers, dynamic shared memory,
-- barriers, warp operations. Lines are marked in the sources by comments: "//@here".

local gpu = require "gpulua"
local support = require "spec.support"

local one = support.one

local source = [[
struct pair { int a, b; };
struct holder { int *x; };
__device__ __noinline__ void put(int *x, int i) {
  x[i] = 1; //@put
}
__device__ void meet(int t) {
  if (t < 32) {
    __syncthreads(); //@meet
  }
}
extern "C" __global__ void past(int *x) {
  if (threadIdx.x == 1 && blockIdx.y == 2) x[4] = 1; //@past
}
extern "C" __global__ void calls(int *x) {
  put(x, 4); //@calls
}
extern "C" __global__ void racing(int *x) {
  if (threadIdx.x == 0)
    x[0] = 1; //@first
  else
    x[1] = x[0]; //@second
}
extern "C" __global__ void claims(int *x) {
  assert(x[0] == 5); //@claims
}
extern "C" __global__ void diverges(int *x) {
  if (threadIdx.x < 32) {
    __syncthreads(); //@then
  } else {
    __syncthreads(); //@else
  }
  x[threadIdx.x] = 1;
}
extern "C" __global__ void side(int *x) {
  if (threadIdx.x < 32) { __syncthreads(); } else { __syncthreads(); } //@side
  x[threadIdx.x] = 1;
}
extern "C" __global__ void within(int *x) {
  meet(threadIdx.x); //@within
  if (threadIdx.x >= 32)
    __syncthreads(); //@outside
  x[threadIdx.x] = 1;
}
extern "C" __global__ void loops(int n, int *x) {
  for (int i = 0; i < n; i++) { x[threadIdx.x] = i; __syncthreads(); }
}
extern "C" __global__ void field(pair *p, int *x) { x[0] = 1; p->b = 2; }
extern "C" __global__ void element(int n, const int *a, int *b, int *x, long long i) { x[0] = b == nullptr; b[i] = n; }
extern "C" __global__ void held(holder h, int *x) { x[0] = 1; h.x[3] = 2; }
extern "C" __global__ void dynamic(int at, int *x) {
  extern __shared__ int s[];
  s[at] = at; //@dynamic
  x[0] = s[at];
}
extern "C" __global__ void waits(int *x) {
  if (threadIdx.x < 16)
    x[threadIdx.x] = __shfl_down_sync(0xffffffff, 1, 1); //@shuffle
  __syncthreads(); //@barrier
}
extern "C" __global__ void outside(int *x) {
  x[threadIdx.x] = __ballot_sync(0xffff, 1); //@ballot
}
extern "C" __global__ void absent(unsigned *x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_down_sync(0xffff, threadIdx.x, 8);
}
extern "C" __global__ void loads(const float *x, int i, float *y) {
  y[0] = reinterpret_cast<const float4 *>(x + i)->w; //@loads
}
extern "C" __global__ void stores(float *x, int i) {
  *reinterpret_cast<float4 *>(x + i) = make_float4(1, 2, 3, 4); //@stores
}
extern "C" __global__ void member(float *x, int i) {
  reinterpret_cast<float4 *>(x + i)->y = 2; //@member
}
extern "C" __global__ void below(const int *x, int *y) {
  y[threadIdx.x] = x[threadIdx.x - 1]; //@below
}
]]

local function marked(mark)
  local at = assert(source:find("//@" .. mark .. "\n", 1, true), mark)
  return select(2, source:sub(1, at):gsub("\n", "")) + 1
end

do -- where the suite's devices are: each transport runs this for itself
  describe("a finding of check mode", function()
    local dev, mod

    setup(function()
      dev = gpu.device("cpu", { check = true, seed = 7 })
      mod = dev:compile(source, { name = "findings.cu" })
    end)
    teardown(function()
      dev:close()
    end)

    local function row(n, label)
      return dev:upload("i32", n, function(i) return i end, { label = label })
    end

    local function finds(code, parts, k, config, ...)
      return (support.finds("check_findings_spec.lua", code, parts, k:launch(config, ...)))
    end

    --- Libdw or not: the line is known, or there is none.
    local function is_at(mark, place, caller)
      if support.has_libdw() then
        assert.equal("findings.cu", place.source)
        assert.equal(marked(mark), place.line)
        assert.equal(caller and marked(caller), place.caller and place.caller.line)
      else
        assert.is_nil(place.line)
      end
    end

    describe("has fields", function()
      it("for its line, its block and its thread", function()
        local places = finds("OutOfBounds", {}, mod.past, { grid = { 1, 3 }, block = 2 }, row(4)).places
        assert.equal(1, #places)
        assert.are.same({ 0, 2, 0 }, places[1].block)
        assert.are.same({ 1, 0, 0 }, places[1].thread)
        is_at("past", places[1])
      end)

      it("for the line in a function, and that of the kernel", function()
        local place = finds("OutOfBounds", {}, mod.calls, one, row(4)).places[1]
        is_at("put", place, "calls")
        assert.equal(place.caller and "findings.cu", place.caller and place.caller.source)
      end)

      it("of a race for both sides", function()
        local places = finds("RaceFound", {}, mod.racing, { grid = 1, block = 2 }, row(4)).places
        assert.equal(2, #places)
        for _, place in ipairs(places) do
          is_at(place.thread[1] == 0 and "first" or "second", place)
        end
        assert.equal(1, places[1].thread[1] + places[2].thread[1])
      end)

      it("of a failed assert, which also work has that needs its output", function()
        local x <close> = row(4)
        local op = mod.claims:launch(one, x)
        local err = support.raises("KernelFailed", "assertion", op.await, op)
        assert.equal("findings.cu", err.places[1].source)
        assert.equal(marked "claims", err.places[1].line)
        assert.are.same({ 0, 0, 0 }, err.places[1].thread)
        local y <close> = row(4)
        mod.racing:launch({ grid = 1, block = 2 }, y)
        local later = support.raises("DependencyFailed", {}, y.read, y)
        assert.equal(2, #later.places)
      end)

      it("that are a script's own: of two errors neither changes the other", function()
        local op = mod.past:launch({ grid = { 1, 3 }, block = 2 }, row(4))
        local _, first = op:join()
        first.places[1].thread[1] = 99
        local _, second = op:join()
        assert.equal(1, second.places[1].thread[1])
        assert.is_nil(select(2, pcall(dev.buffer, dev, "f33", 1)).places)
      end)

      it("for the operations of both tasks in a race", function()
        local x, found = row(4), {}
        gpu.run(function()
          for i = 1, 2 do
            gpu.spawn(function()
              local config = { grid = 1, block = 1, label = "launch " .. i }
              found[i] = table.pack(pcall(mod.past.launch, mod.past, config, x))
            end)
          end
        end)
        local err = not found[1][1] and found[1][2] or found[2][2]
        support.is_error(err, "RaceFound", "of another task")
        local names = { err.op.label, err.other.label }
        table.sort(names)
        assert.are.same({ "launch 1", "launch 2" }, names)
        assert.equal(err.op.line, err.other.line)
        assert.is_nil(err.places)
      end)
    end)

    describe("of a barrier that diverges", function()
      local function at(place)
        return "findings.cu:" .. marked(place)
      end

      it("names the file and the line of both, with or without libdw", function()
        local err = finds("RaceFound", { "has a divergent barrier: block (0,0,0), thread (",
          " waits at another one at ", at "then", at "else" }, mod.diverges, { grid = 1, block = 64 }, row(64))
        for _, place in ipairs(err.places) do
          assert.equal(marked(place.thread[1] < 32 and "then" or "else"), place.line)
          assert.equal("findings.cu", place.source)
        end
      end)

      it("tells two of one line apart", function()
        local err = finds("RaceFound", { "waits at another one at " .. at "side" }, mod.side,
          { grid = 1, block = 64 }, row(64))
        assert.are.same({ marked "side", marked "side" }, { err.places[1].line, err.places[2].line })
      end)

      it("names the kernel's line where one is in a function", function()
        local parts = { at "meet", at "outside" }
        parts[3] = support.has_libdw() and "called at " .. at "within" or nil
        finds("RaceFound", parts, mod.within, { grid = 1, block = 64 }, row(64))
      end)

      it("is none in copies of a loop, and of threads that have ended", function()
        mod.loops:launch({ grid = 1, block = 64 }, 9, row(64)):await()
      end)
    end)

    describe("of a null pointer says so", function()
      it("with the argument that was nil", function()
        finds("OutOfBounds", "wrote 4 bytes through a null pointer (address 4): argument 1 ('p') is nil",
          mod:kernel("field", "p: inout void*, x: inout i32*"), one, nil, row(4))
        finds("OutOfBounds", "wrote 4 bytes through a null pointer (address 4194304): argument 3 ('b') is nil",
          mod.element, one, 1, row(4), nil, row(4), 1 << 20)
        finds("OutOfBounds", "through a null pointer (address -8): argument 2 ('a'), argument 3 ('b') is nil",
          mod.element, one, 1, nil, nil, row(4), -2)
      end)

      it("where the kernel has made it, or a structure has it", function()
        finds("OutOfBounds", { "through a null pointer (address 12): no argument is nil" },
          mod:kernel("held", "h: { x: inout i32* }, x: inout i32*"), one, { x = nil }, row(4))
      end)

      it("and of another address does not", function()
        finds("OutOfBounds", "outside of every buffer", mod.element, one, 1, nil, row(4), row(4), 1 << 20)
      end)
    end)

    it("of dynamic shared memory says how much the launch asked for", function()
      local config = { grid = 1, block = 1, shared = 64 }
      mod.dynamic:launch(config, 15, row(4)):await()
      for at, said in pairs { [16] = 64, [-1] = -4, [-16000] = -64000, [1 << 20] = 4 << 20 } do
        local err = finds("OutOfBounds", { ("wrote 4 bytes at byte %d of dynamic shared memory, "):format(said),
          "of which the launch asked for 64 bytes (`shared`)" }, mod.dynamic, config, at, row(4))
        is_at("dynamic", err.places[1])
      end
      finds("OutOfBounds", "at byte 0 of dynamic shared memory, of which the launch asked for none (`shared`)",
        mod.dynamic, one, 0, row(4))
    end)

    describe("of a warp operation", function()
      it("that some lanes of its mask do not come to names who waits where", function()
        local err = finds("KernelFailed", { "is stuck in a warp operation for the lanes of mask 0xffffffff: ",
          "thread (16,0,0), which is one of them, waits elsewhere" }, mod.waits, { grid = 1, block = 32 }, row(32))
        assert.are.same({ 0, 0, 0 }, err.places[1].thread)
        assert.are.same({ 16, 0, 0 }, err.places[2].thread)
        is_at("shuffle", err.places[1])
        is_at("barrier", err.places[2])
      end)

      it("whose mask leaves out the lane itself", function()
        local err = finds("InvalidArgument", "for the lanes of mask 0x0000ffff, of which it is none: its lane is ",
          mod.outside, { grid = 1, block = 32 }, row(32))
        assert.truthy(err.places[1].thread[1] >= 16)
        is_at("ballot", err.places[1])
      end)

      it("is none where a lane takes what it gets from one that takes no part, which is poison", function()
        local x <close> = dev:buffer("u32", 16):fill(0)
        mod.absent:launch({ grid = 1, block = 32 }, x):await()
        assert.are.same({ 8, 15, 0xdbdbdbdb }, { x:read(1, 1)[1], x:read(8, 8)[1], x:read(9, 9)[1] })
      end)
    end)

    it("of a vector that lies where it may not says where it has to, also where the compiler takes it apart", function()
      for name, more in pairs { stores = {}, member = {}, loads = { dev:buffer("f32", 1) } } do
        local x = dev:buffer("f32", 16):fill(1)
        mod[name]:launch(one, x, 4, table.unpack(more)):await()
        local err = finds("InvalidArgument", "which is no multiple of ", mod[name], one, x, 1, table.unpack(more))
        is_at(name, err.places[1])
      end
    end)

    it("of an index that has gone below 0 without a sign says so", function()
      local err = finds("OutOfBounds", { "read 4 bytes outside of every buffer, as element 4294967295 of argument 1 ",
        "('x') would be: has an index of 32 bits gone below 0 without a sign?" }, mod.below, { grid = 1, block = 4 },
        row(4), row(4))
      is_at("below", err.places[1])
    end)
  end)
end
