/* What several threads gain that submit work to streams of their own, with the CUDA driver alone:
 * nanoseconds for each launch of all threads together, sustained; by cuLaunchKernel, and as our
 * backend does it, an executable graph of one kernel whose parameters are set anew (prepared); each
 * with an event recorded behind it. One thread deals its launches out to as many streams as there
 * would be threads.
 *
 *     build/bench/lanes */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

#define REPEATS 9
#define LAUNCHES 8000
#define THREADS_MAX 4
#define AHEAD 512 /* launches that are under way at most, as a ring would have it */

#define DRIVER_PREPARES
#define DRIVER(X) X(cuCtxGetCurrent, CUresult, (CUcontext *))

#include "driver.h"

static struct driver_lane lanes[THREADS_MAX];
static CUfunction nothing;
static CUcontext context;
static CUdeviceptr memory;
static atomic_int ready, go;
static int thread_count;
static bool is_prepared;

static void launch(struct driver_lane *lane, uint32_t number) {
    void *args[] = {&memory, &number};
    driver_launch(lane, nothing, args, is_prepared);
}

/* Its share of the launches, on one stream or, alone, on all of them in turn. */
static void *run(void *user) {
    struct driver_lane *lane = user;
    CK(p_cuCtxSetCurrent(context));
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&go)) {}
    int count = LAUNCHES / thread_count;
    for (int i = 0; i < count; i++) {
        launch(thread_count > 1 ? lane : &lanes[i % THREADS_MAX], (uint32_t)i);
        if (i % AHEAD == AHEAD - 1) {
            CK(p_cuStreamSynchronize(lane->stream));
        }
    }
    CK(p_cuStreamSynchronize(lane->stream));
    return NULL;
}

static double measure(int count) {
    double values[REPEATS];
    thread_count = count;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        pthread_t threads[THREADS_MAX];
        atomic_store(&ready, 0);
        atomic_store(&go, 0);
        for (int i = 0; i < count; i++) {
            if (pthread_create(&threads[i], NULL, run, &lanes[i])) {
                exit(1);
            }
        }
        while (atomic_load(&ready) < count) {}
        double start = now_ns();
        atomic_store(&go, 1);
        for (int i = 0; i < count; i++) {
            pthread_join(threads[i], NULL);
        }
        for (int i = 0; i < THREADS_MAX; i++) {
            CK(p_cuStreamSynchronize(lanes[i].stream));
        }
        values[repeat] = (now_ns() - start) / LAUNCHES;
    }
    return median(values, REPEATS);
}

int main(void) {
    if (!driver_open()) {
        return 0;
    }
    CUmodule module;
    CK(p_cuCtxGetCurrent(&context));
    CK(p_cuModuleLoadData(&module, nothing_ptx));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuMemAlloc_v2(&memory, 4096));
    for (int i = 0; i < THREADS_MAX; i++) {
        uint32_t number = 0;
        void *args[] = {&memory, &number};
        driver_lane_open(&lanes[i], nothing, args);
    }
    for (int prepared = 0; prepared < 2; prepared++) {
        is_prepared = prepared;
        (void)measure(1); /* warm */
        for (int count = 1; count <= THREADS_MAX; count *= 2) {
            printf("%s_%d_threads %.0f ns\n", prepared ? "prepared" : "plain", count,
                   measure(count));
        }
    }
    return 0;
}

#else

int main(void) {
    puts("# built without the CUDA toolkit's headers");
    return 0;
}

#endif
