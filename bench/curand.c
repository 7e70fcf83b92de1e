/* Random numbers with cuRAND alone, in C: what bench/rng.lua is measured against. Prints `name
 * value unit` lines (medians). Libraries are opened with dlopen, so the program builds anywhere and
 * says so where there is no GPU. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<curand.h>)
#include <cuda.h>
#include <curand.h>

#define REPEATS 15
#define CALLS 100
#define COUNT ((size_t)100000000)

#define DRIVER(X)
#include "driver.h"

#define RAND_TABLE(X)                                                                              \
    X(curandCreateGenerator)                                                                       \
    X(curandSetStream)                                                                             \
    X(curandGenerateUniform)                                                                       \
    X(curandGenerateNormal)
#define X(name) static __typeof__(name) *r_##name;
RAND_TABLE(X)
#undef X

static CUstream stream;
static curandGenerator_t generator;

static void check(curandStatus_t status) {
    if (status != CURAND_STATUS_SUCCESS) {
        fprintf(stderr, "cuRAND: error %d\n", (int)status);
        exit(1);
    }
}

static bool rand_open(void) {
    void *library = dlopen("libcurand.so.10", RTLD_NOW);
    library = library ? library : dlopen("/usr/local/cuda/lib64/libcurand.so.10", RTLD_NOW);
    if (!library) {
        puts("# no cuRAND here");
        return false;
    }
#define X(name)                                                                                    \
    *(void **)&r_##name = dlsym(library, #name);                                                   \
    if (!r_##name) {                                                                               \
        puts("# cuRAND lacks " #name);                                                             \
        return false;                                                                              \
    }
    RAND_TABLE(X)
#undef X
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    check(r_curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10));
    check(r_curandSetStream(generator, (cudaStream_t)stream));
    return true;
}

static void measure(const char *name, CUdeviceptr x, bool is_normal) {
    double times[REPEATS];
    for (int r = 0; r < REPEATS; r++) {
        CK(p_cuStreamSynchronize(stream));
        double start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            float *to = (float *)(uintptr_t)x;
            check(is_normal ? r_curandGenerateNormal(generator, to, COUNT, 0, 1)
                            : r_curandGenerateUniform(generator, to, COUNT));
        }
        CK(p_cuStreamSynchronize(stream));
        times[r] = (now_ns() - start) / CALLS;
    }
    printf("%s %.1f us\n", name, median(times, REPEATS) / 1000);
}

int main(void) {
    CUdeviceptr x;
    if (!driver_open() || !rand_open()) {
        return 0;
    }
    CK(p_cuMemAlloc_v2(&x, COUNT * sizeof(float)));
    measure("warm_up", x, false);
    measure("philox_uniform", x, false);
    measure("philox_normal", x, true);
    return 0;
}
#else
int main(void) {
    puts("# built without curand.h");
    return 0;
}
#endif
