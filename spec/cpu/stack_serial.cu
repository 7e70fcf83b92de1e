// As stack.cu, without barriers: more local memory than a GPU has, 3,000,000 bytes.
#define LONG 750000
__device__ __noinline__ int second(const int *x, int i) {
    volatile int a[LONG];
    a[x[i] & 7] = i;
    return a[x[i] & 7];
}
extern "C" __global__ void frames(const int *x, const int *deep, int *out) {
    int i = threadIdx.x;
    volatile int a[LONG];
    a[x[i] & 7] = 1000 + i;
    int sum = deep[i] ? second(x, i) : 0;
    out[i] = sum + a[x[i] & 7];
}
