// Local memory: two frames that a thread's stack has room for one by one.
#define LONG 40000 // 160,000 bytes, of which few are written
__device__ __noinline__ int second(const int *x, int i) {
    volatile int a[LONG];
    a[x[i] & 7] = i;
    return a[x[i] & 7];
}
extern "C" __global__ void frames(const int *x, const int *deep, int *out) {
    int i = threadIdx.x;
    volatile int a[LONG];
    a[x[i] & 7] = 1000 + i;
    int sum = 0;
    __syncthreads();
    if (deep[i]) sum += second(x, i);
    __syncthreads();
    out[i] = sum + a[x[i] & 7];
}
