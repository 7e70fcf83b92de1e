// Indices, guards, functions, types of parameters, variables.
extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void indices(unsigned *out, dim3 unused) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned at = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[at * 2] = threadIdx.x | threadIdx.y << 10 | threadIdx.z << 20;
    out[at * 2 + 1] = blockIdx.x | blockIdx.y << 10 | blockIdx.z << 20;
}

extern "C" {
__global__ void guard_return(int w, int h, int *out) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    out[y * w + x] = x * 1000 + y;
}
__global__ void guard_returns(unsigned w, unsigned h, int *out) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= w) {
        return;
    }
    unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    if (y >= h) return;
    if ((x + y) % 2 == 0) {
        out[y * w + x] = 1;
    } else {
        out[y * w + x] = 2;
    }
    out[y * w + x] += 10;
}
__global__ void guard_else(int n, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 3 == 1)
        out[i] = i;
    else
        out[i] = -i;
}
__global__ void guard_memory(const int *mask, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (mask[i]) out[i]++;
}
__global__ void guard_effect(int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i]++;
    if (i < 100000) out[i] += 10;
}
}

__global__ void stride(long long n, double *x) {
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        x[i] = 0.5 * i;
}

__device__ __forceinline__ unsigned global_index() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __noinline__ int lane_of_block() { return threadIdx.x % 32; }
struct Point {
    float x, y;
    __device__ float length2() const { return x * x + y * y; }
    __device__ int thread() const { return threadIdx.x; }
};
template <typename T, int N> struct Table {
    T values[N / 2];
    __device__ T sum() const {
        T s = T(0);
#pragma unroll
        for (int i = 0; i < N / 2; i++) s += values[i];
        return s;
    }
};
template <class T> __device__ T twice(T x) { return x + x; }
template <> __device__ int twice<int>(int x) { return 2 * x + 1; }

extern "C" __global__ void functions(Point p, float *out, int *ids) {
    unsigned i = global_index();
    static const float offset = 0.25f;
    auto add = [=](float v) { return v + offset + (float)threadIdx.x * 0.0f; };
    auto index = []() { return threadIdx.x; };
    Table<float, 8> table = {{1.0f, 2.0f, 3.0f, 4.0f}};
    out[i] = add(p.length2()) + table.sum() + twice(0.5f) + twice(1);
    ids[i] = p.thread() * 1000 + lane_of_block() + (int)index() - (int)threadIdx.x;
}

namespace outer {
namespace inner {
__device__ int counter = 5;
__constant__ float weights[2][3];
template <typename T> __global__ void scale(T *x, T by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
__global__ void weigh(float *out) {
    out[threadIdx.x] = weights[threadIdx.x / 3][threadIdx.x % 3] * 2.0f + (float)counter;
    if (threadIdx.x == 0) counter = 7;
}
} // namespace inner
} // namespace outer

__device__ float4 quads[3];
__device__ const int primes[] = {2, 3, 5, 7};
__device__ struct Pair {
    int a;
    double b;
} pair_of[2];
__device__ int first_of_two = 1, second_of_two[2] = {2, 3};

__global__ void __launch_bounds__(128, 2) variables(int *out) {
    quads[threadIdx.x % 3].y = 4.5f;
    pair_of[1].a = 12;
    out[threadIdx.x] = primes[threadIdx.x % 4] + first_of_two + second_of_two[1];
}

typedef unsigned short pixel_t;
#define POINTER(T) const T *__restrict__
__global__ void parameters(char a, signed char b, unsigned char c, short d, pixel_t e, unsigned f,
                           long g, unsigned long h, long long i, size_t j, float k, double l, bool m,
                           POINTER(float4) n, int2 *o, void *p, const void *q, Point r, float **s,
                           volatile int *t, uchar4 u) {}
__global__ void nameless(int, float *) {}
__global__ void nothing() {}
__global__ void layout(char a, double b, char c, float4 d, short e, int *out) {
    out[0] = a;
    out[1] = (int)b;
    out[2] = c;
    out[3] = (int)d.w;
    out[4] = e;
}

__global__ void overloaded(int *x) { x[0] = 1; }
__global__ void overloaded(float *x, int unused) { x[0] = 2.0f; }
