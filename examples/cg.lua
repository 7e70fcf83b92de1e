-- A conjugate-gradient solver that converges on the device: gpulua examples/cg.lua [SIDE]
--
-- Poisson's equation on the unit square, SIDE by SIDE points inside, 0 on the border: the matrix is the stencil of five
-- points. All of the loop is one conditional node of a graph: what decides whether it goes on is computed and read on
-- the device, and the script waits once, for everything. The same function without a capture waits for the decision in
-- every iteration, and computes the same bits.

local gpu = require "gpulua"

local side <const> = math.tointeger(tonumber(... or 128)) or error "SIDE: a whole number"
assert(side >= 1 and side <= 1024, "SIDE: from 1 to 1024")

local dev = gpu.device()
local mod = dev:compile [=[
  enum { THREADS = 256 }; // of a block, as below

  // y = A x, A being 4 on the diagonal and -1 for the four neighbours.
  extern "C" __global__ void stencil(int side, const double *x, double *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, column = i % side, row = i / side;
    if (row >= side) return;
    double sum = 4 * x[i];
    if (column > 0) sum -= x[i - 1];
    if (column < side - 1) sum -= x[i + 1];
    if (row > 0) sum -= x[i - side];
    if (row < side - 1) sum -= x[i + side];
    y[i] = sum;
  }

  // The sum of each thread's value over the block, the same way every time.
  __device__ double block_sum(double value) {
    __shared__ double part[THREADS];
    int t = threadIdx.x;
    part[t] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (t < half) part[t] += part[t + half];
      __syncthreads();
    }
    return part[0];
  }
  extern "C" __global__ void products(int n, const double *x, const double *y, double *parts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double sum = block_sum(i < n ? x[i] * y[i] : 0);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
  }
  __device__ double total(int count, const double *parts) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) sum += parts[i];
    return block_sum(sum);
  }

  // One block each. rr: r'r; alpha, beta: as they are always called.
  extern "C" __global__ void begin(int count, const double *parts, double tolerance, double *rr, double *limit,
                                   double *iterations, int *goes_on) {
    double sum = total(count, parts);
    if (threadIdx.x > 0) return;
    rr[0] = sum;
    limit[0] = tolerance * tolerance * sum;
    iterations[0] = 0;
    goes_on[0] = sum > 0;
  }
  extern "C" __global__ void length(int count, const double *parts, const double *rr, double *alpha) {
    double pAp = total(count, parts);
    if (threadIdx.x == 0) alpha[0] = rr[0] / pAp;
  }
  extern "C" __global__ void decide(int count, const double *parts, const double *limit, int most, double *rr,
                                    double *beta, double *iterations, int *goes_on) {
    double sum = total(count, parts);
    if (threadIdx.x > 0) return;
    beta[0] = sum / rr[0];
    rr[0] = sum;
    iterations[0] += 1;
    goes_on[0] = sum > limit[0] && iterations[0] < most;
  }

  extern "C" __global__ void advance(int n, const double *alpha, const double *p, const double *q, double *x,
                                     double *r) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    x[i] += alpha[0] * p[i];
    r[i] -= alpha[0] * q[i];
  }
  extern "C" __global__ void turn(int n, const double *beta, const double *r, double *p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = r[i] + beta[0] * p[i];
  }]=]

local n <const>, threads <const>, tolerance <const> = side * side, 256, 1e-10
local most <const> = 10 * side + 100 -- iterations; there would be a mistake in more
local blocks <const> = (n + threads - 1) // threads
local all <const>, one <const> = { grid = blocks, block = threads }, { grid = 1, block = threads }

-- A solution to be found: a hill that is 0 on the border, and steeper on one side.
local function hill(row, column)
  local x, y = column / (side + 1), row / (side + 1)
  return 16 * x * (1 - x) * y * (1 - y) * math.exp(x - y)
end

local known = dev:upload("f64", n, function(i) return hill((i - 1) // side + 1, (i - 1) % side + 1) end)
local b, r, p, q = dev:buffer("f64", n), dev:buffer("f64", n), dev:buffer("f64", n), dev:buffer("f64", n)
mod.stencil:launch(all, side, known, b)

-- What the script wants to know lies side by side, so that one read, which is one wait, gets it all.
local result = dev:buffer("f64", n + 2)
local x, iterations, rr = result:slice(1, n), result:slice(n + 1, n + 1), result:slice(n + 2, n + 2)
local alpha, beta, limit = dev:buffer("f64", 1), dev:buffer("f64", 1), dev:buffer("f64", 1)
local parts = dev:buffer("f64", blocks)
local goes_on = dev:scalar("i32", 0, { label = "goes on" })

local function solve()
  x:fill(0)
  r:copy(b)
  p:copy(b)
  mod.products:launch(all, n, r, r, parts)
  mod.begin:launch(one, blocks, parts, tolerance, rr, limit, iterations, goes_on)
  gpu.graph.while_(goes_on, function()
    mod.stencil:launch(all, side, p, q)
    mod.products:launch(all, n, p, q, parts)
    mod.length:launch(one, blocks, parts, rr, alpha)
    mod.advance:launch(all, n, alpha, p, q, x, r)
    mod.products:launch(all, n, r, r, parts)
    mod.decide:launch(one, blocks, parts, limit, most, rr, beta, iterations, goes_on)
    mod.turn:launch(all, n, beta, r, p)
  end)
end

-- Lua's own clock on the wall has seconds only: without luv no times are told.
local has_luv, uv = pcall(require, "luv")
local now = has_luv and function() return uv.hrtime() / 1e9 end or function() return 0 end

local function run(name, f)
  dev:synchronize()
  local start = now()
  f()
  local values = result:read() -- the wait
  local seconds = now() - start
  local count, residual = values[n + 1], values[n + 2] ^ 0.5
  local error_most = 0
  for i = 1, n do
    error_most = math.max(error_most, math.abs(values[i] - hill((i - 1) // side + 1, (i - 1) % side + 1)))
  end
  print(("%-6s %d iterations, residual %.3e, largest error %.3e"):format(name, count, residual, error_most)
    .. (has_luv and (", %.3f s"):format(seconds) or ""))
  return values
end

local graph = dev:capture({ label = "cg" }, solve)
local captured = run("graph", function() graph:launch() end)
local eager = run("eager", solve)
for i = 1, #eager do
  assert(eager[i] == captured[i], "the graph found another solution")
end
local nodes, edges = graph:nodes()
print(("%s: %d unknowns, a graph of %d nodes and %d edges, the same bits"):format(dev.name, n, nodes, edges))
