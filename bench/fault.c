/* How long the driver itself takes to tell of a fault, in a process that asks all the time; what it
 * takes to be rid of that process, and to start over in a new one. The floor of bench/recovery.lua.
 * Prints `name value ms` lines (medians of REPEATS). */
#include <cuda.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DRIVER(X) X(cuEventQuery, CUresult, (CUevent))
#include "driver.h"

#define REPEATS 5

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry wild() { .reg .b64 %a; mov.u64 %a, 16;"
                          " st.volatile.global.u32 [%a], 1; ret; }\n"
                          ".visible .entry odd(.param .u64 p) { .reg .b64 %a;"
                          " ld.param.u64 %a, [p]; add.u64 %a, %a, 1;"
                          " st.volatile.global.u32 [%a], 1; ret; }\n"
                          ".visible .entry stop() { trap; ret; }\n"
                          ".visible .entry nothing() { ret; }\n"
                          ".visible .entry spin() { L: bra L; }\n";

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

enum { TIME_START, TIME_FIRST, TIME_TOLD, TIME_COUNT };

/* In a child: opens the device, runs an empty kernel, then the one named; -1 for what it has not
 * got to. */
static void child(const char *kernel, int out) {
    double times[TIME_COUNT] = {-1, -1, -1};
    double begun = now_ms();
    if (!driver_open()) {
        _exit(1);
    }
    times[TIME_START] = now_ms() - begun;
    CUmodule module;
    CUfunction function, nothing;
    CUstream stream;
    CUevent probe;
    CUdeviceptr memory;
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuEventCreate(&probe, CU_EVENT_DISABLE_TIMING));
    CK(p_cuMemAlloc_v2(&memory, 4096));
    CK(p_cuModuleLoadData(&module, ptx));
    CK(p_cuModuleGetFunction(&function, module, kernel));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CK(p_cuStreamSynchronize(stream));
    times[TIME_FIRST] = now_ms() - begun;
    void *args[] = {&memory};
    bool hangs = strcmp(kernel, "spin") == 0;
    begun = now_ms();
    CK(p_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
    CUresult result = CUDA_SUCCESS;
    while (!hangs && (result = p_cuEventQuery(probe)) == CUDA_SUCCESS) {}
    times[TIME_TOLD] = hangs ? -1 : now_ms() - begun;
    if (write(out, times, sizeof times) != sizeof times) {
        _exit(1);
    }
    pause();
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *kernel, const char *what, double *values) {
    qsort(values, REPEATS, sizeof *values, compare);
    printf("%s_%s %.1f ms\n", kernel, what, values[REPEATS / 2]);
}

int main(void) {
    static const char *const kernels[] = {"wild", "odd", "stop", "spin"};
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
        double start[REPEATS], first[REPEATS], told[REPEATS], gone[REPEATS];
        for (int r = 0; r < REPEATS; r++) {
            int ends[2];
            double times[TIME_COUNT];
            if (pipe(ends) != 0) {
                return 1;
            }
            pid_t pid = fork();
            if (pid == 0) {
                child(kernels[k], ends[1]);
            }
            close(ends[1]);
            if (pid < 0 || read(ends[0], times, sizeof times) != sizeof times) {
                return pid < 0; /* there is no GPU, which has been said */
            }
            double begun = now_ms();
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            close(ends[0]);
            gone[r] = now_ms() - begun;
            start[r] = times[TIME_START];
            first[r] = times[TIME_FIRST];
            told[r] = times[TIME_TOLD];
        }
        show(kernels[k], "open", start);
        show(kernels[k], "first_kernel", first);
        if (strcmp(kernels[k], "spin") != 0) {
            show(kernels[k], "told", told);
        }
        show(kernels[k], "killed", gone);
    }
    return 0;
}
