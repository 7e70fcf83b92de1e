// Local memory: small frames, and many of them.
__device__ __noinline__ int down(int n) {
    volatile int a[64];
    for (int k = 0; k < 64; k++) a[k] = n + k;
    return n == 0 ? 0 : down(n - 1) + a[n & 63] - n - (n & 63) + 1;
}
extern "C" __global__ void levels(const int *deep, int *out) {
    int i = threadIdx.x;
    __syncthreads();
    int sum = down(deep[i]);
    __syncthreads();
    out[i] = sum;
}
