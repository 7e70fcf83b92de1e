-- Kernels of the specs of graphs.

return [[
  extern "C" __global__ void add(const int *x, int *y, int n, int a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
  }
  extern "C" __global__ void put(const int *x, const int *y, int *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] * 3 + y[i];
  }
  extern "C" __global__ void must(int *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { assert(x[i] >= 0); x[i] = x[i] + 1; }
  }
]]
