/* How long the driver itself takes to tell of a fault, in a process that asks all the time; what it
 * takes to be rid of that process, and to start over in a new one; and what an heir, a process that
 * has a context already, takes for a kernel, for memory and for a module, from the moment on in
 * which the other one is told, while that one is still there (beside) and while it is killed
 * (behind). The floor of bench/recovery.lua. Prints `name value ms` lines (medians of REPEATS). */
#include <cuda.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRIVER(X) X(cuEventQuery, CUresult, (CUevent))
#include "driver.h"
#include "faults.h"

#define REPEATS 5

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
    CK(p_cuModuleLoadData(&module, faults_ptx));
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

enum { HEIR_KERNEL, HEIR_MEMORY, HEIR_MODULE, HEIR_COUNT };

/* In a child: opens the device, says so, and does its work when it is told to. Times from then on.
 */
static void heir(int in, int out) {
    double times[HEIR_COUNT];
    char byte = 0;
    CUmodule module, other;
    CUfunction nothing;
    CUstream stream;
    CUdeviceptr memory;
    if (!driver_open()) {
        _exit(1);
    }
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuModuleLoadData(&module, faults_ptx));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CK(p_cuStreamSynchronize(stream));
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) {
        _exit(1);
    }
    double begun = now_ms();
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CK(p_cuStreamSynchronize(stream));
    times[HEIR_KERNEL] = now_ms() - begun;
    CK(p_cuMemAlloc_v2(&memory, (size_t)64 << 20));
    times[HEIR_MEMORY] = now_ms() - begun;
    CK(p_cuModuleLoadData(&other, faults_ptx));
    CK(p_cuModuleGetFunction(&nothing, other, "nothing"));
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CK(p_cuStreamSynchronize(stream));
    times[HEIR_MODULE] = now_ms() - begun;
    if (write(out, times, sizeof times) != sizeof times) {
        _exit(1);
    }
    pause();
}

/* Times of an heir, of a process that runs `kernel` and is killed when it has said what became of
 * that, or later. False: there is no GPU. */
static bool inherit(const char *kernel, bool is_killed, double times[HEIR_COUNT]) {
    int to_heir[2], from_heir[2], from_child[2];
    double told[TIME_COUNT];
    char byte = 0;
    if (pipe(to_heir) != 0 || pipe(from_heir) != 0 || pipe(from_child) != 0) {
        return false;
    }
    pid_t next = fork();
    if (next == 0) {
        heir(to_heir[0], from_heir[1]);
    }
    close(from_heir[1]);
    bool is_there = next > 0 && read(from_heir[0], &byte, 1) == 1;
    pid_t pid = is_there ? fork() : -1;
    if (pid == 0) {
        child(kernel, from_child[1]);
    }
    close(from_child[1]);
    is_there = pid > 0 && read(from_child[0], told, sizeof told) == sizeof told;
    if (is_there && is_killed) {
        kill(pid, SIGKILL);
    }
    is_there = is_there && write(to_heir[1], &byte, 1) == 1 &&
               read(from_heir[0], times, HEIR_COUNT * sizeof times[0]) ==
                   (ssize_t)(HEIR_COUNT * sizeof times[0]);
    for (int i = 0; i < 2; i++) {
        pid_t gone = i ? next : pid;
        if (gone > 0) {
            kill(gone, SIGKILL);
            waitpid(gone, NULL, 0);
        }
    }
    close(to_heir[0]);
    close(to_heir[1]);
    close(from_heir[0]);
    close(from_child[0]);
    return is_there;
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
        for (int is_killed = 0; is_killed < 2; is_killed++) {
            static const char *const whats[2][HEIR_COUNT] = {
                {"beside_kernel", "beside_memory", "beside_module"},
                {"behind_kernel", "behind_memory", "behind_module"}};
            double values[HEIR_COUNT][REPEATS];
            for (int r = 0; r < REPEATS; r++) {
                double times[HEIR_COUNT];
                if (!inherit(kernels[k], is_killed, times)) {
                    return 1;
                }
                for (int i = 0; i < HEIR_COUNT; i++) {
                    values[i][r] = times[i];
                }
            }
            for (int i = 0; i < HEIR_COUNT; i++) {
                show(kernels[k], whats[is_killed][i], values[i]);
            }
        }
    }
    return 0;
}
