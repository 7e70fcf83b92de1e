// Shared memory and barriers.
extern "C" __global__ void reverse(int *data) {
    __shared__ int s[1024];
    s[threadIdx.x] = data[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    data[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void reverse_dynamic(int *data, int n) {
    extern __shared__ int memory[];
    double *doubles = (double *)memory; // the start is aligned for everything
    doubles[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = (int)doubles[n - 1 - (int)threadIdx.x];
}

extern __shared__ __align__(16) unsigned char bytes_of_all[];
__device__ void put(int i, unsigned char value) { bytes_of_all[i] = value; }
extern "C" __global__ void dynamic_outside(unsigned char *out) {
    put(threadIdx.x, (unsigned char)(threadIdx.x * 3));
    __syncthreads();
    out[threadIdx.x] = bytes_of_all[blockDim.x - 1 - threadIdx.x];
}

template <int TILE> __global__ void transpose(const float *in, float *out, int width, int height) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    if (x < width && y < height) tile[threadIdx.y][threadIdx.x] = in[y * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    if (x < height && y < width) out[y * height + x] = tile[threadIdx.x][threadIdx.y];
}

__device__ void halve(volatile float *s, unsigned t, unsigned count) {
    for (unsigned k = count / 2; k > 0; k /= 2) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
}
struct Summer {
    float *s;
    __device__ float operator()(float mine, unsigned t, unsigned count) {
        s[t] = mine;
        __syncthreads();
        halve(s, t, count);
        return s[0];
    }
};
extern "C" __global__ void sum(const float *x, float *out) {
    __shared__ float s[1024];
    unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned count = blockDim.x * blockDim.y * blockDim.z;
    Summer summer = {s};
    float all = summer(x[blockIdx.x * count + t], t, count);
    if (t == 0) out[blockIdx.x] = all;
}

// Threads that have ended do not count at a barrier.
extern "C" __global__ void early(int *out, int n) {
    __shared__ int s[256];
    s[threadIdx.x] = 0;
    if (threadIdx.x >= n) return;
    s[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    if (threadIdx.x == 3) return;
    __syncthreads();
    out[threadIdx.x] = s[(threadIdx.x + 1) % n];
}

extern "C" __global__ void votes(int *out, int limit) {
    int t = threadIdx.x;
    out[t * 4] = __syncthreads_count(t < limit);
    out[t * 4 + 1] = __syncthreads_and(t < limit);
    out[t * 4 + 2] = __syncthreads_or(t == limit);
    out[t * 4 + 3] = __syncthreads_and(t >= 0) + 2 * __syncthreads_or(t < 0) +
                     4 * (__syncthreads_count(1) == blockDim.x);
}

// Many rounds, neighbours depend on each other in each.
extern "C" __global__ void rounds(int *out, int count) {
    __shared__ int s[2][1024];
    int t = threadIdx.x, n = blockDim.x;
    s[0][t] = t;
    for (int i = 0; i < count; i++) {
        __syncthreads();
        s[(i + 1) & 1][t] = s[i & 1][(t + 1) % n] + 1;
    }
    __syncthreads();
    out[blockIdx.x * n + t] = s[count & 1][t];
}

// Shared memory without a barrier: a scratch of the thread's own.
extern "C" __global__ void scratch(int *out) {
    __shared__ int mine[256];
    mine[threadIdx.x] = threadIdx.x;
    mine[threadIdx.x] *= 2;
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine[threadIdx.x] + blockIdx.x;
}

extern "C" __global__ void stuck(int *out) {
    if (threadIdx.x < 7) {
        __syncthreads();
    } else {
        out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    }
}

// A thread waits for a later one of its block without a barrier.
extern "C" __global__ void spin(int *out) {
    __shared__ volatile int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        while (flag == 0) __nanosleep(20);
        out[0] = flag;
    } else if (threadIdx.x == blockDim.x - 1) {
        flag = 42;
    }
}
