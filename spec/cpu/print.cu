// Asserts and output.
__device__ void positive(int x) { assert(x > 0 && "must be positive"); }
extern "C" __global__ void check(const int *x, int limit, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] < limit);
    out[i] = 1;
}
extern "C" __global__ void check_barrier(const int *x, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
    positive(x[i]);
    __syncthreads();
    out[i] = 1;
}
extern "C" __global__ void print(int n) {
    if (threadIdx.x < n) printf("block %d thread %d of %d: %s %.2f %lld\n", blockIdx.x, threadIdx.x, n, "text", 1.5f, 1ll << 40);
}
