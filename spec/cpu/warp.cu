// Warp operations.
#define FULL 0xffffffffu
template <typename T> __device__ void shuffles(T *out, T value, int width) {
    int t = threadIdx.x, n = blockDim.x;
    out[0 * n + t] = __shfl_sync(FULL, value, t + 3, width);
    out[1 * n + t] = __shfl_up_sync(FULL, value, 3, width);
    out[2 * n + t] = __shfl_down_sync(FULL, value, 5, width);
    out[3 * n + t] = __shfl_xor_sync(FULL, value, 9, width);
}
extern "C" __global__ void shuffle(int *i, unsigned *u, long long *l, unsigned long long *ul, float *f,
                                   double *d, int width) {
    int t = threadIdx.x;
    shuffles<int>(i, -t - 1, width);
    shuffles<unsigned>(u, 0x80000000u + t, width);
    shuffles<long long>(l, -((long long)t << 40), width);
    shuffles<unsigned long long>(ul, 0x8000000000000000ull + t, width);
    shuffles<float>(f, t + 0.5f, width);
    shuffles<double>(d, t + 0.25, width);
}

extern "C" __global__ void vote(unsigned *out) {
    unsigned t = threadIdx.x, n = blockDim.x;
    out[t] = __ballot_sync(FULL, t % 3 == 0);
    out[n + t] = __any_sync(FULL, t == 40) + 2 * __all_sync(FULL, t < 64);
    out[2 * n + t] = __match_any_sync(FULL, (int)(t / 5));
    int same;
    out[3 * n + t] = __match_all_sync(FULL, t / 32, &same);
    out[3 * n + t] += same;
    int different;
    out[4 * n + t] = __match_all_sync(FULL, (unsigned long long)t, &different) + different;
}

extern "C" __global__ void reduce_warp(int *out, int count) {
    int t = threadIdx.x;
    if (t >= count) return; // a part of the last warp: those that ended take no part
    int value = (t * 37) % 101 - 50;
    out[t * 8] = __reduce_add_sync(FULL, value);
    out[t * 8 + 1] = __reduce_min_sync(FULL, value);
    out[t * 8 + 2] = __reduce_max_sync(FULL, value);
    out[t * 8 + 3] = (int)__reduce_min_sync(FULL, (unsigned)value);
    out[t * 8 + 4] = (int)__reduce_max_sync(FULL, (unsigned)value);
    out[t * 8 + 5] = (int)__reduce_and_sync(FULL, (unsigned)value);
    out[t * 8 + 6] = (int)__reduce_or_sync(FULL, (unsigned)value);
    out[t * 8 + 7] = (int)__reduce_xor_sync(FULL, (unsigned)value);
}

// Sum over a block with shuffles, and one barrier between.
__inline__ __device__ float warp_sum(float v) {
    for (int k = warpSize / 2; k > 0; k /= 2) v += __shfl_down_sync(FULL, v, k);
    return v;
}
extern "C" __global__ void block_sum(const float *x, float *out, int n) {
    __shared__ float parts[32];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32) v = warp_sum(v);
    if (threadIdx.x == 0) out[0] = v;
}

// Two halves of a warp work apart, with masks of their own.
extern "C" __global__ void halves(int *out) {
    int t = threadIdx.x;
    if (t % 32 < 16) {
        int v = t;
        for (int i = 0; i < 3; i++) v = __shfl_sync(0x0000ffffu, v, (t + 1) % 16) + 1;
        out[t] = v;
    } else {
        int v = 100 + t;
        for (int i = 0; i < 5; i++) {
            __syncwarp(0xffff0000u);
            v = __shfl_sync(0xffff0000u, v, 16 + (t + 1) % 16) + 1;
        }
        out[t] = v;
    }
    __syncwarp();
    out[t] += 1000 * __any_sync(FULL, t % 32 == 31);
}

// Threads of a warp that are somewhere together count once: one atomic for all.
extern "C" __global__ void aggregate(int *counter, int *slots, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n && t % 3 == 0) {
        unsigned active = __activemask();
        int leader = __ffs(active) - 1, lane = threadIdx.x & 31, base;
        if (lane == leader) base = atomicAdd(counter, __popc(active));
        base = __shfl_sync(active, base, leader);
        slots[base + __popc(active & ((1u << lane) - 1))] = t;
    }
}
