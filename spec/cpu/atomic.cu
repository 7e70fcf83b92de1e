// Atomic functions, on global and on shared memory.
extern "C" __global__ void integers(int *i, unsigned *u, unsigned long long *l, long long *s) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&i[0], t);
    atomicSub(&i[1], 1);
    atomicMin(&i[2], -t);
    atomicMax(&i[3], t);
    atomicAnd(&i[4], ~(1 << (t % 16)));
    atomicOr(&i[5], 1 << (t % 20));
    atomicXor(&i[6], t);
    atomicExch(&i[7], t % 2 + 5);
    atomicAdd_block(&i[8], 1);
    atomicAdd_system(&i[9], 2);
    atomicAdd(&u[0], 3u);
    atomicSub(&u[1], 1u);
    atomicMin(&u[2], 0x80000000u + t);
    atomicMax(&u[3], 0x80000000u + t);
    atomicAnd(&u[4], ~(1u << (t % 31)));
    atomicOr(&u[5], 1u << (t % 32));
    atomicXor(&u[6], (unsigned)t << 8);
    atomicInc(&u[7], 99);
    atomicDec(&u[8], 99);
    atomicAdd(&l[0], 0x100000001ull);
    atomicMin(&l[1], ~0ull - t);
    atomicMax(&l[2], 1ull << 40 | t);
    atomicAnd(&l[3], ~(1ull << (t % 60)));
    atomicOr(&l[4], 1ull << (t % 50));
    atomicXor(&l[5], (unsigned long long)t << 30);
    atomicExch(&l[6], 77ull);
    atomicMin(&s[0], -(long long)t);
    atomicMax(&s[1], (long long)t << 33);
}

extern "C" __global__ void floats(float *f, double *d, float2 *f2) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&f[0], 1.0f);
    atomicExch(&f[1], 2.5f);
    atomicAdd(&d[0], 0.5);
    atomicAdd(f2, make_float2(1.0f, 2.0f));
    // A maximum of floats, by compare and swap.
    int *bits = (int *)&f[2], old = *bits, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __float_as_int(fmaxf((float)t, __int_as_float(assumed))));
    } while (assumed != old);
}

extern "C" __global__ void swap(unsigned long long *l, unsigned short *h, unsigned *u) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long old = *l, assumed;
    do {
        assumed = old;
        old = atomicCAS(l, assumed, assumed + 1);
    } while (assumed != old);
    unsigned short now = h[t % 2], then;
    do {
        then = now;
        now = atomicCAS(&h[t % 2], then, (unsigned short)(then + 1));
    } while (then != now);
    atomicCAS(&u[0], 5u, 6u);
    u[1 + t] = atomicCAS(&u[0], 1234u, 1u);
}

extern "C" __global__ void histogram(const unsigned char *x, int n, unsigned *bins) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

// A lock taken and given back by one thread after another.
extern "C" __global__ void lock(int *mutex, int *count) {
    while (atomicCAS(mutex, 0, 1) != 0) {
    }
    __threadfence();
    volatile int *v = count;
    *v = *v + 1;
    __threadfence();
    atomicExch(mutex, 0);
}

// The last block of all adds up what the others left.
__device__ unsigned ticket;
extern "C" __global__ void last_block(float *parts, float *out) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = blockIdx.x + 1.0f;
        __threadfence();
        is_last = atomicInc(&ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        float all = 0;
        for (unsigned i = 0; i < gridDim.x; i++) all += ((volatile float *)parts)[i];
        out[0] = all;
    }
}
