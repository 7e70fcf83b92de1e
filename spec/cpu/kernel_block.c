/* The part of kernel_test for what the threads of a block do together: shared memory, barriers,
 * warps, atomics; and for memory. Included by kernel_test.c. */

/* ---- shared memory and barriers ---- */

static void shared_tests(struct program *p) {
    enum { N = 1024 };
    int *data = malloc(4 * N * sizeof *data);
    for (unsigned block = 1; block <= N; block = block == 1 ? 31 : block == 31 ? 256 : block * 4) {
        for (int i = 0; i < 4 * N; i++) {
            data[i] = i;
        }
        bool ok = runs(launch(p, "reverse", SHAPE(4, block), &data, block > 256 ? 3 : 1));
        for (unsigned i = 0; i < 4 * block; i++) {
            ok = ok && data[i] == (int)(i / block * block + block - 1 - i % block);
        }
        check(ok, "a block of %u threads reverses through shared memory", block);
    }
    struct {
        int *data;
        int n;
    } dynamic = {data, 500};
    for (int i = 0; i < 500; i++) {
        data[i] = i;
    }
    bool ok = runs(
        launch(p, "reverse_dynamic", (struct shape){{1, 1, 1}, {500, 1, 1}, 4000}, &dynamic, 1));
    for (int i = 0; i < 500; i++) {
        ok = ok && data[i] == 499 - i;
    }
    check(ok, "dynamic shared memory");
    unsigned char bytes[64];
    unsigned char *bytes_args = bytes;
    ok = runs(
        launch(p, "dynamic_outside", (struct shape){{1, 1, 1}, {64, 1, 1}, 64}, &bytes_args, 1));
    for (int i = 0; i < 64; i++) {
        ok = ok && bytes[i] == (unsigned char)((63 - i) * 3);
    }
    check(ok, "dynamic shared memory declared outside functions");
    memset(data, 0, 4 * N * sizeof *data);
    ok = runs(launch(p, "scratch", SHAPE(4, 256), &data, 2));
    for (int i = 0; i < N; i++) {
        ok = ok && data[i] == 2 * (i % 256) + i / 256;
    }
    check(ok, "shared memory without a barrier");
    struct {
        int *out;
        int count;
    } rounds = {data, 50};
    ok = runs(launch(p, "rounds", SHAPE(3, N), &rounds, 2));
    for (int i = 0; i < 3 * N; i++) {
        ok = ok && data[i] == (i + 50) % N + 50;
    }
    check(ok, "1,024 threads depend on each other through 50 barriers");
    free(data);
}

static void transpose_test(struct program *p) {
    enum { W = 50, H = 35 };
    float in[W * H], out[W * H];
    for (int i = 0; i < W * H; i++) {
        in[i] = (float)i;
    }
    struct {
        const float *in;
        float *out;
        int width, height;
    } args = {in, out, W, H};
    bool ok = runs(launch(p, "transpose<16>", (struct shape){{4, 3, 1}, {16, 16, 1}, 0}, &args, 2));
    for (int i = 0; i < W * H; i++) {
        ok = ok && out[i % W * H + i / W] == in[i];
    }
    check(ok, "a transposition through tiles in shared memory");
}

static void barrier_tests(struct program *p) {
    float x[2 * 1024], sums[2];
    for (int i = 0; i < 2048; i++) {
        x[i] = (float)(i % 10);
    }
    struct {
        const float *x;
        float *out;
    } sum = {x, sums};
    bool ok = runs(launch(p, "sum", (struct shape){{2, 1, 1}, {16, 8, 8}, 0}, &sum, 2));
    float expected[2] = {0, 0};
    for (int i = 0; i < 2048; i++) {
        expected[i / 1024] += x[i];
    }
    check(ok && sums[0] == expected[0] && sums[1] == expected[1],
          "a sum over a block of three dimensions, barriers inside functions and methods");
    int out[256];
    struct {
        int *out;
        int n;
    } early = {out, 100};
    memset(out, -1, sizeof out);
    ok = runs(launch(p, "early", SHAPE(1, 256), &early, 1));
    for (int i = 0; i < 256; i++) {
        ok = ok && out[i] == (i >= 100 || i == 3 ? -1 : (i + 1) % 100 + 1);
    }
    check(ok, "threads that have ended do not count at a barrier");
    int votes[4 * 70];
    struct {
        int *out;
        int limit;
    } vote = {votes, 33};
    ok = runs(launch(p, "votes", SHAPE(1, 70), &vote, 1));
    for (int i = 0; i < 70; i++) {
        ok = ok && votes[4 * i] == 33 && votes[4 * i + 1] == 0 && votes[4 * i + 2] == 1 &&
             votes[4 * i + 3] == 5;
    }
    check(ok, "__syncthreads_count, _and, _or");
    int *flag = out;
    out[0] = 0;
    ok = runs(launch(p, "spin", SHAPE(1, 64), &flag, 1));
    check(ok && out[0] == 42, "a thread that sleeps lets a later one go first");
    const char *text = launch(p, "stuck", SHAPE(1, 32), &flag, 1);
    check(strstr(text, "stuck") != NULL && strstr(text, "7 of its threads wait at __syncthreads"),
          "a block that could never go on fails: %s", text);
    ok = runs(launch(p, "early", SHAPE(1, 256), &early, 1));
    check(ok, "and the next launch runs");
}

/* ---- warps ---- */

#define SHUFFLED(T, out, value)                                                                    \
    for (int t = 0; t < n; t++) {                                                                  \
        int base = t / width * width, end = base + width - 1, lane = t % width;                    \
        int from[4] = {base + (t + 3) % width, lane >= 3 ? t - 3 : t, t + 5 <= end ? t + 5 : t,    \
                       (t ^ 9) <= end ? (t ^ 9) : t};                                              \
        for (int k = 0; k < 4; k++) {                                                              \
            int s = from[k];                                                                       \
            ok = ok && out[k * n + t] == (T)(value);                                               \
        }                                                                                          \
    }

static void shuffle_tests(struct program *p) {
    enum { n = 64 };
    static int i[4 * n];
    static unsigned u[4 * n];
    static long long l[4 * n];
    static unsigned long long ul[4 * n];
    static float f[4 * n];
    static double d[4 * n];
    for (int width = 2; width <= 32; width *= 2) {
        struct {
            int *i;
            unsigned *u;
            long long *l;
            unsigned long long *ul;
            float *f;
            double *d;
            int width;
        } args = {i, u, l, ul, f, d, width};
        bool ok = runs(launch(p, "shuffle", SHAPE(1, n), &args, 1));
        SHUFFLED(int, i, -s - 1)
        SHUFFLED(unsigned, u, 0x80000000u + (unsigned)s)
        SHUFFLED(long long, l, -((long long)s << 40))
        SHUFFLED(unsigned long long, ul, 0x8000000000000000ull + (unsigned)s)
        SHUFFLED(float, f, (float)s + 0.5f)
        SHUFFLED(double, d, (double)s + 0.25)
        check(ok, "the four shuffles of six types, width %d", width);
    }
}

static void vote_tests(struct program *p) {
    enum { n = 96 };
    unsigned out[5 * n];
    unsigned *args = out;
    bool ok = runs(launch(p, "vote", SHAPE(1, n), &args, 1));
    for (unsigned t = 0; t < n; t++) {
        unsigned ballot = 0, match = 0, first = t / 32 * 32;
        for (unsigned s = first; s < first + 32; s++) {
            ballot |= s % 3 == 0 ? 1u << s % 32 : 0;
            match |= s / 5 == t / 5 ? 1u << s % 32 : 0;
        }
        ok = ok && out[t] == ballot && out[n + t] == (t / 32 == 1) + 2u * (t < 64) &&
             out[2 * n + t] == match && out[3 * n + t] == 0u && out[4 * n + t] == 0u;
    }
    check(ok, "ballot, any, all, match_any, match_all");
}

static void reduce_test(struct program *p) {
    enum { n = 96, count = 77 };
    int out[8 * n];
    struct {
        int *out;
        int count;
    } args = {out, count};
    memset(out, 0, sizeof out);
    bool ok = runs(launch(p, "reduce_warp", SHAPE(1, n), &args, 1));
    for (int t = 0; t < count; t++) {
        int first = t / 32 * 32, last = first + 32 < count ? first + 32 : count;
        int add = 0, min = INT32_MAX, max = INT32_MIN;
        unsigned umin = UINT32_MAX, umax = 0, and = UINT32_MAX, or = 0, xor = 0;
        for (int s = first; s < last; s++) {
            int v = s * 37 % 101 - 50;
            unsigned w = (unsigned)v;
            add += v;
            min = v < min ? v : min;
            max = v > max ? v : max;
            umin = w < umin ? w : umin;
            umax = w > umax ? w : umax;
            and &= w;
            or |= w;
            xor ^= w;
        }
        const int expected[8] = {add, min, max, (int)umin, (int)umax, (int)and, (int) or, (int)xor};
        ok = ok && memcmp(&out[8 * t], expected, sizeof expected) == 0;
    }
    check(ok, "the eight reductions, also with lanes that have ended");
}

static void warp_tests(void) {
    struct program p = program_open("warp.cu", "");
    shuffle_tests(&p);
    vote_tests(&p);
    reduce_test(&p);
    float x[5000], out = 0;
    double sum = 0;
    for (int i = 0; i < 5000; i++) {
        x[i] = (float)(i % 7);
        sum += x[i];
    }
    struct {
        const float *x;
        float *out;
        int n;
    } block = {x, &out, 5000};
    bool ok = runs(launch(&p, "block_sum", SHAPE(1, 1024), &block, 1));
    check(ok && out == (float)sum, "a sum by shuffles and one barrier");
    int halves[64];
    int *halves_args = halves;
    ok = runs(launch(&p, "halves", SHAPE(1, 64), &halves_args, 1));
    for (int t = 0; t < 64; t++) {
        int w = t / 32 * 32, lane = t % 32, v;
        if (lane < 16) {
            v = w + (lane + 3) % 16 + 3; /* three steps to the right, each adds one */
        } else {
            v = 100 + w + 16 + (lane - 16 + 5) % 16 + 5;
        }
        ok = ok && halves[t] == v + 1000;
    }
    check(ok, "two halves of a warp, each with a mask of its own");
    int counter = 0, slots[1000];
    memset(slots, -1, sizeof slots);
    struct {
        int *counter, *slots;
        int n;
    } aggregate = {&counter, slots, 1000};
    ok = runs(launch(&p, "aggregate", SHAPE(8, 128), &aggregate, 2));
    bool seen[1000] = {false};
    for (int i = 0; i < 334; i++) {
        ok = ok && slots[i] >= 0 && slots[i] < 1000 && slots[i] % 3 == 0 && !seen[slots[i]];
        if (ok) {
            seen[slots[i]] = true;
        }
    }
    check(ok && counter == 334, "__activemask: one atomic for a warp");
    program_close(&p);
}

/* ---- atomics ---- */

static void atomic_integer_test(struct program *p) {
    enum { G = 60, B = 100, N = G * B };
    int i[10] = {0, 0, 5, -5, -1, 0, 0, 0, 0, 0};
    unsigned u[9] = {0, 0, UINT32_MAX, 0, UINT32_MAX, 0, 0, 0, 0};
    unsigned long long l[7] = {0, UINT64_MAX, 0, UINT64_MAX, 0, 0, 0};
    long long s[2] = {1, -1};
    struct {
        int *i;
        unsigned *u;
        unsigned long long *l;
        long long *s;
    } args = {i, u, l, s};
    bool ok = runs(launch(p, "integers", SHAPE(G, B), &args, 4));
    int xor = 0;
    unsigned uxor = 0;
    unsigned long long lxor = 0;
    for (int t = 0; t < N; t++) {
        xor ^= t;
        uxor ^= (unsigned)t << 8;
        lxor ^= (unsigned long long)t << 30;
    }
    check(ok && i[0] == N * (N - 1) / 2 && i[1] == -N && i[2] == 1 - N && i[3] == N - 1 &&
              i[4] == ~0xffff && i[5] == 0xfffff && i[6] == xor&&(i[7] == 5 || i[7] == 6) &&
              i[8] == N &&i[9] == 2 * N,
          "atomics on int, from four threads at once");
    check(u[0] == 3u * N && u[1] == 0u - N && u[2] == 0x80000000u && u[3] == 0x80000000u + N - 1 &&
              u[4] == 0x80000000u && u[5] == UINT32_MAX && u[6] == uxor && u[7] == N % 100 &&
              u[8] == (100 - N % 100) % 100,
          "atomics on unsigned");
    check(l[0] == 0x100000001ull * N && l[1] == ~0ull - (N - 1) && l[2] >= ((1ull << 40) | 4096) &&
              l[3] == 0xf000000000000000ull && l[4] == (1ull << 50) - 1 && l[5] == lxor &&
              l[6] == 77 && s[0] == 1 - N && s[1] == (long long)(N - 1) << 33,
          "atomics on 64 bits");
}

static void atomic_tests(void) {
    enum { G = 60, B = 100, N = G * B };
    struct program p = program_open("atomic.cu", "");
    atomic_integer_test(&p);
    float f[3] = {0, 0, 0}, f2[2] = {0, 0};
    double d = 0;
    struct {
        float *f;
        double *d;
        float *f2;
    } floats = {f, &d, f2};
    bool ok = runs(launch(&p, "floats", SHAPE(G, B), &floats, 4));
    check(ok && f[0] == N && f[1] == 2.5f && f[2] == N - 1 && d == N / 2 && f2[0] == N &&
              f2[1] == 2 * N,
          "atomics on float, double, float2, and a maximum by compare and swap");
    unsigned long long l = 3;
    unsigned short h[2] = {65535, 0};
    unsigned *u = calloc(N + 1, sizeof *u);
    u[0] = 5;
    struct {
        unsigned long long *l;
        unsigned short *h;
        unsigned *u;
    } swap = {&l, h, u};
    ok = runs(launch(&p, "swap", SHAPE(G, B), &swap, 4));
    for (int i = 1; i <= N; i++) {
        ok = ok && u[i] == 6;
    }
    check(ok && l == N + 3 && h[0] == (unsigned short)(65535 + N / 2) && h[1] == N / 2 && u[0] == 6,
          "compare and swap of 64, 16 and 32 bits");
    free(u);
    unsigned char *bytes = malloc(100000);
    unsigned bins[256] = {0}, expected[256] = {0};
    for (int i = 0; i < 100000; i++) {
        bytes[i] = (unsigned char)((unsigned)i * (unsigned)i >> 3);
        expected[bytes[i]]++;
    }
    struct {
        const unsigned char *x;
        int n;
        unsigned *bins;
    } histogram = {bytes, 100000, bins};
    ok = runs(launch(&p, "histogram", SHAPE(17, 192), &histogram, 4));
    check(ok && memcmp(bins, expected, sizeof bins) == 0, "a histogram, atomics on shared memory");
    free(bytes);
    int mutex = 0, count = 0;
    struct {
        int *mutex, *count;
    } lock = {&mutex, &count};
    ok = runs(launch(&p, "lock", SHAPE(G, B), &lock, 4));
    check(ok && count == N && mutex == 0, "a lock by compare and swap");
    float parts[50], all = 0;
    struct {
        float *parts, *out;
    } last = {parts, &all};
    ok = runs(launch(&p, "last_block", SHAPE(50, 64), &last, 4));
    check(ok && all == 50 * 51 / 2, "the last block sees what the others wrote");
    program_close(&p);
}

/* ---- memory ---- */

static void memory_tests(void) {
    enum { N = 32 };
    struct program p = program_open("memory.cu", "");
    _Alignas(16) float in[4 * N], out[4 * N];
    _Alignas(16) int i[2 * N];
    _Alignas(16) double d[2 * N];
    unsigned char c[4 * N];
    for (int k = 0; k < 4 * N; k++) {
        in[k] = (float)k;
    }
    struct {
        const float *in;
        float *out;
        int *i;
        double *d;
        unsigned char *c;
    } vectors = {in, out, i, d, c};
    bool ok = runs(launch(&p, "vectors", SHAPE(1, N), &vectors, 1));
    for (int t = 0; t < N; t++) {
        ok = ok && out[4 * t] == in[4 * t + 3] && out[4 * t + 1] == in[4 * t + 2] &&
             out[4 * t + 2] == 9.0f && out[4 * t + 3] == 8.0f && i[2 * t] == t &&
             i[2 * t + 1] == -t + 12 + 3 + 16 + 16 && d[2 * t] == t * 0.5 &&
             d[2 * t + 1] == in[4 * t] && c[4 * t] == 1 && c[4 * t + 3] == t;
    }
    check(ok, "vector types, their makers, sizes and members");
    _Alignas(16) int from[N], to[128] = {0};
    for (int t = 0; t < N; t++) {
        from[t] = t + 1;
    }
    struct {
        const int *in;
        int *out;
    } hints = {from, to};
    ok = runs(launch(&p, "hints", SHAPE(1, N), &hints, 1));
    for (int t = 0; t < N; t++) {
        ok = ok && to[t] == 6 * (t + 1);
    }
    check(ok && to[100] == 1 && to[101] == 5 && to[102] == 6, "loads and stores with cache hints");
    int *heap = to;
    ok = runs(launch(&p, "heap", SHAPE(1, N), &heap, 1));
    for (int t = 0; t < N; t++) {
        ok = ok && to[t] == 15 + t + 0 + 2 + t + 7 + 3;
    }
    check(ok, "malloc, free, new, delete, memcpy, memset in a kernel");
    long long ticks[4] = {0};
    long long *clocks = ticks;
    ok = runs(launch(&p, "clocks", SHAPE(1, 4), &clocks, 1));
    check(ok && ticks[0] == 1 && ticks[3] == 1, "clocks go on");
    struct {
        int *out;
        int n;
    } local = {to, 3};
    ok = runs(launch(&p, "local_array", SHAPE(2, 64), &local, 2));
    check(ok && to[0] == 3 * 4095 * 2048 && to[63] == to[0],
          "a large array of each thread's own, across a barrier");
    program_close(&p);
}
