// Vector types, cache hints, the heap, memory functions, clocks.
extern "C" __global__ void vectors(const float4 *in, float4 *out, int2 *i, double2 *d, uchar4 *c) {
    int t = threadIdx.x;
    float4 v = in[t];
    out[t] = make_float4(v.w, v.z, v.y, v.x);
    i[t] = make_int2(t, -t);
    i[t].y += sizeof(float3) + sizeof(char3) + alignof(float4) + alignof(double2);
    d[t] = make_double2(t * 0.5, v.x);
    uchar4 q = make_uchar4(1, 2, 3, (unsigned char)t);
    c[t] = q;
    // The same bytes under another type.
    reinterpret_cast<float2 *>(out)[2 * t + 1] = make_float2(9.0f, 8.0f);
}

extern "C" __global__ void hints(const int *in, int *out) {
    int t = threadIdx.x;
    __stcg(&out[t], __ldg(&in[t]) + __ldcg(&in[t]) + __ldca(&in[t]) + __ldcs(&in[t]) + __ldlu(&in[t]) +
                        __ldcv(&in[t]));
    const float4 *quads = (const float4 *)in;
    float4 q = __ldg(quads);
    if (t == 1) __stcs(&out[100], __float_as_int(q.x));
    if (t == 2) __stwb(&out[101], 5);
    if (t == 3) __stwt(&out[102], 6);
}

extern "C" __global__ void heap(int *out) {
    int *p = (int *)malloc(16 * sizeof(int));
    for (int i = 0; i < 16; i++) p[i] = i + threadIdx.x;
    int q[16];
    memcpy(q, p, sizeof q);
    memset(p, 0, 8);
    int *one = new int(7), *many = new int[4];
    many[3] = 3;
    out[threadIdx.x] = q[15] + p[1] + p[2] + *one + many[3];
    delete one;
    delete[] many;
    free(p);
}

extern "C" __global__ void clocks(long long *out) {
    long long start = clock64();
    clock_t c = clock();
    __threadfence_block();
    __threadfence();
    __threadfence_system();
    out[threadIdx.x] = clock64() - start >= 0 && c != 0;
}

// A large array of the thread's own.
extern "C" __global__ void local_array(int *out, int n) {
    int a[4096];
    for (int i = 0; i < 4096; i++) a[i] = i * n;
    __syncthreads();
    int s = 0;
    for (int i = 0; i < 4096; i++) s += a[(i * 7 + threadIdx.x) % 4096];
    out[threadIdx.x] = s;
}
