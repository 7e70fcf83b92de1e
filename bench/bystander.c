/* A program of the driver alone that does no harm, on a GPU that others use whose kernels fault:
 * what does it hear of that?
 *   build/bench/bystander [SECONDS, default 60]
 * Short kernels, copies, events and waits on several streams, again and again. Prints how many
 * rounds there were, and the first call that failed, with which error. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

enum { STREAMS = 4, BYTES = 4096 };

#define DRIVER(X)                                                                                  \
    X(cuStreamWaitEvent, CUresult, (CUstream, CUevent, unsigned))                                  \
    X(cuMemcpyHtoDAsync_v2, CUresult, (CUdeviceptr, const void *, size_t, CUstream))               \
    X(cuMemcpyDtoHAsync_v2, CUresult, (void *, CUdeviceptr, size_t, CUstream))                     \
    X(cuGetErrorName, CUresult, (CUresult, const char **))

#include "driver.h"

static int failed(const char *call, CUresult result, uint64_t rounds, double seconds) {
    const char *name = "?";
    (void)p_cuGetErrorName(result, &name);
    printf("%s: %s (%d) in round %llu, after %.1f s\n", call, name, (int)result,
           (unsigned long long)rounds, seconds);
    return 1;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        CUresult tried = (call);                                                                   \
        if (tried != CUDA_SUCCESS) {                                                               \
            return failed(#call, tried, rounds, (now_ns() - start) / 1e9);                         \
        }                                                                                          \
    } while (0)

static int run(CUfunction tick, double seconds) {
    CUstream streams[STREAMS];
    CUevent events[STREAMS];
    CUdeviceptr buffers[STREAMS];
    static unsigned char host[STREAMS][BYTES];
    for (int i = 0; i < STREAMS; i++) {
        CK(p_cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        CK(p_cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
        CK(p_cuMemAlloc_v2(&buffers[i], BYTES));
    }
    uint64_t rounds = 0, ticks = 20000;
    double start = now_ns();
    for (; now_ns() - start < seconds * 1e9; rounds++) {
        for (int i = 0; i < STREAMS; i++) {
            void *args[] = {&buffers[i], &ticks};
            TRY(p_cuStreamWaitEvent(streams[i], events[(i + 1) % STREAMS], 0));
            TRY(p_cuLaunchKernel(tick, 1, 1, 1, 32, 1, 1, 0, streams[i], args, NULL));
            TRY(p_cuMemcpyHtoDAsync_v2(buffers[i], host[i], BYTES, streams[i]));
            TRY(p_cuEventRecord(events[i], streams[i]));
        }
        for (int i = 0; i < STREAMS; i++) {
            TRY(p_cuMemcpyDtoHAsync_v2(host[i], buffers[i], BYTES, streams[i]));
            TRY(p_cuStreamSynchronize(streams[i]));
        }
    }
    printf("%llu rounds in %.0f s, and no call failed\n", (unsigned long long)rounds, seconds);
    return 0;
}

int main(int argc, char **argv) {
    static char ptx[4096];
    if (!driver_open()) {
        return 0;
    }
    FILE *file = fopen("bench/tick.ptx", "r");
    if (file == NULL || fread(ptx, 1, sizeof ptx - 1, file) == 0) {
        puts("# bench/tick.ptx cannot be read");
        return 1;
    }
    fclose(file);
    CUmodule module;
    CUfunction tick;
    CK(p_cuModuleLoadData(&module, ptx));
    CK(p_cuModuleGetFunction(&tick, module, "tick"));
    return run(tick, argc > 1 ? atof(argv[1]) : 60);
}
#else
int main(void) {
    puts("# built without cuda.h");
    return 0;
}
#endif
